"""What the heads compute from the encoder, and their losses, by hand."""

import pytest
import torch
import torch.nn.functional as F
from networks import FOUR, VOCABULARY, config, padding, stir

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
