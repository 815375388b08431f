"""What the heads compute from the encoder, and their losses, by hand."""

import pytest
import torch
import torch.nn.functional as F
from networks import FOUR, NETWORKS, VOCABULARY, config, d, padding, stir

from greenformers.model import GreenformerForMaskedLM, GreenformerForSequenceClassification

B, N = 3, 13


def tokens():
    return torch.randint(VOCABULARY, (B, N))


def masked_lm(name="transformer", **options):
    return stir(GreenformerForMaskedLM(config(name, **options)).double()).eval()


def classifier(name="transformer", **options):
    return stir(GreenformerForSequenceClassification(config(name, **options)).double()).eval()


@pytest.mark.parametrize("name", FOUR)
def test_masked_lm_scores_every_token(name):
    network, ids, mask = masked_lm(name), tokens(), padding(B, N)
    labels = ids.masked_fill(~mask, -100)
    out = network(ids, mask, labels=labels)
    hidden = network.encoder(ids, mask).last_hidden_state
    hidden = network.norm(F.gelu(network.transform(hidden)))
    logits = hidden @ network.encoder.embedding.word.weight.mT + network.decoder.bias
    torch.testing.assert_close(out.logits, logits, rtol=1e-12, atol=1e-12)
    chosen = logits.log_softmax(-1).gather(-1, ids[..., None])[mask]
    torch.testing.assert_close(out.loss, -chosen.mean(), rtol=1e-12, atol=1e-12)
    out.loss.backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    assert network(ids).loss is None


def test_masked_lm_needs_a_vocabulary():
    with pytest.raises(ValueError, match="needs a vocab_size, got None"):
        GreenformerForMaskedLM(config(input_features=2))


@pytest.mark.parametrize("name", FOUR)
def test_classification(name):
    network, ids, mask = classifier(name, num_labels=7), tokens(), padding(B, N)
    labels = torch.tensor([6, 0, 3])
    out = network(ids, mask, labels=labels)
    logits = network.classifier(network.encoder(ids, mask).pooler_output)
    torch.testing.assert_close(out.logits, logits, rtol=1e-12, atol=1e-12)
    expected = -logits.log_softmax(-1)[torch.arange(B), labels].mean()
    torch.testing.assert_close(out.loss, expected, rtol=1e-12, atol=1e-12)
    out.loss.backward()
    assert all(parameter.grad is not None for parameter in network.encoder.layers.parameters())


def test_one_label_is_a_number():
    network, ids, target = classifier(num_labels=1), tokens(), torch.tensor([0.5, -1.0, 3.0], dtype=torch.float64)
    out = network(ids, labels=target)
    torch.testing.assert_close(out.loss, (out.logits[:, 0] - target).square().mean())


def test_classification_of_values():
    network = classifier(input_features=2, num_labels=5)
    x = torch.randn(B, N, 2, dtype=torch.float64)
    assert network(input_values=x).logits.shape == (B, 5)
    loss, logits = network(input_values=x, labels=torch.tensor([0, 1, 4]), return_dict=False)
    assert logits.shape == (B, 5)
    assert loss.ndim == 0


def test_hidden_states_pass_through():
    assert len(masked_lm()(tokens(), output_hidden_states=True).hidden_states) == 3
    assert len(classifier()(tokens(), output_hidden_states=True).hidden_states) == 3


@pytest.mark.parametrize("name", NETWORKS)
def test_every_parameter_learns(name):
    ids, mask = tokens(), padding(B, N)
    for network, labels in ((masked_lm(name), ids), (classifier(name, pooling="mean"), torch.tensor([1, 0, 1]))):
        network(ids, mask, labels=labels).loss.backward()
        still = {key for key, parameter in network.named_parameters() if not parameter.grad.any()}
        # Softmax does not see what is added to every key alike.
        assert {key for key in still if not key.endswith("projections.k.bias")} == set()


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_numbers_of_another_type(dtype):
    network, ids, target = classifier(num_labels=1), tokens(), torch.tensor([3, 0, 2], dtype=dtype)
    out = network(ids, labels=target)
    torch.testing.assert_close(out.loss, (out.logits[:, 0] - target).square().mean())


def test_dropout_before_the_classifier_in_training_only():
    network, ids = classifier(), tokens()
    before = network(ids).logits
    network.dropout.p = 1.0
    torch.testing.assert_close(network(ids).logits, before, rtol=0, atol=0)
    torch.testing.assert_close(network.train()(ids).logits, network.classifier.bias.expand(B, -1))


@pytest.mark.parametrize("make", [masked_lm, classifier])
def test_as_a_tuple(make):
    network, ids = make(), tokens()
    labels = ids if make is masked_lm else torch.tensor([1, 0, 1])
    out = network(ids, labels=labels)
    torch.testing.assert_close(network(ids, labels=labels, return_dict=False), (out.loss, out.logits), rtol=0, atol=0)
    torch.testing.assert_close(network(ids, return_dict=False), (out.logits,), rtol=0, atol=0)


@pytest.mark.parametrize("make", [masked_lm, classifier])
def test_hidden_states_are_those_of_the_encoder(make):
    network, ids = make(residual="pre"), tokens()
    expected = network.encoder(ids, output_hidden_states=True).hidden_states
    torch.testing.assert_close(network(ids, output_hidden_states=True).hidden_states, expected, rtol=0, atol=0)
    assert network(ids).hidden_states is None
    network.config.output_hidden_states = True
    torch.testing.assert_close(network(ids).hidden_states, expected, rtol=0, atol=0)


def test_output_and_input_embedding_are_one_tensor_unless_untied():
    network = masked_lm()
    assert network.decoder.weight is network.encoder.embedding.word.weight
    assert network.get_output_embeddings() is network.decoder
    untied = masked_lm(tie_word_embeddings=False)
    assert untied.decoder.weight is not untied.encoder.embedding.word.weight


def test_input_embeddings_of_values():
    network, new = classifier(input_features=2), torch.nn.Linear(2, d)
    assert network.get_input_embeddings() is network.encoder.embedding.value
    network.set_input_embeddings(new)
    assert network.encoder.embedding.value is new


@pytest.mark.parametrize("size", [VOCABULARY + 4, VOCABULARY - 6])
def test_resize_token_embeddings(size):
    network, both = masked_lm(), min(size, VOCABULARY)
    ids = torch.randint(both, (B, N))
    with torch.no_grad():
        before = network(ids).logits
    network.resize_token_embeddings(size)
    assert network.config.vocab_size == size
    assert network.decoder.weight is network.encoder.embedding.word.weight
    out = network(ids, labels=torch.full((B, N), size - 1))
    torch.testing.assert_close(out.logits[..., :both], before[..., :both])
    out.loss.backward()
    assert network.decoder.bias.grad.shape == (size,)


@pytest.mark.parametrize("make", [masked_lm, classifier])
def test_a_misspelt_mask_is_not_ignored(make):
    with pytest.raises(TypeError, match="attention_maks"):
        make()(tokens(), attention_maks=torch.ones(B, N))


def test_many_labels_at_once():
    network = classifier(num_labels=5, problem_type="multi_label_classification")
    ids, labels = tokens(), torch.tensor([[1, 0, 1, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]])
    out = network(ids, labels=labels)
    p = out.logits.sigmoid()
    torch.testing.assert_close(out.loss, -torch.where(labels == 1, p, 1 - p).log().mean())
