"""The causal language model against its plain form."""

import plain_text
import pytest
import torch
from networks import LAYERS, VOCABULARY, d, padding
from text_networks import DECODERS, causal, left, tokens

from greenformers.model import GreenformerDecoder

B, N = 3, 13
MASKS = {"whole": None, "right": padding(B, N), "left": left(padding(B, N))}


@pytest.mark.parametrize("side", MASKS)
@pytest.mark.parametrize("residual", ["post", "pre"])
@pytest.mark.parametrize("name", DECODERS)
def test_equals_its_plain_form(name, residual, side):
    network, ids, mask = causal(name, residual=residual), tokens(B, N), MASKS[side]
    logits = network(ids, None if mask is None else mask.long()).logits
    expected = plain_text.causal_lm(network, ids, mask)
    assert expected.requires_grad
    torch.testing.assert_close(logits, expected, atol=1e-12, rtol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(network(ids, mask).logits, expected.detach(), atol=1e-12, rtol=1e-12)
    leaves, g = list(network.parameters()), torch.randn(B, N, VOCABULARY, dtype=torch.float64)
    gradients = torch.autograd.grad(logits, leaves, g)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, leaves, g), atol=1e-10, rtol=1e-11)


@pytest.mark.parametrize("grad", [True, False])
def test_a_mask_of_ones_is_no_mask(grad):
    network, ids = causal(), tokens(B, N)
    with torch.set_grad_enabled(grad):
        logits = network(ids, torch.ones_like(ids)).logits
        torch.testing.assert_close(logits, network(ids).logits, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["dense", "lrt", "sinusoidal"])
def test_a_padded_sequence_equals_the_short_one(name, side):
    network, ids, mask = causal(name), tokens(B, N), MASKS[side]
    padded = network(ids, mask).logits
    for i in range(B):
        alone = network(ids[i : i + 1, mask[i]]).logits[0]
        torch.testing.assert_close(padded[i, mask[i]], alone, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("residual", ["post", "pre"])
def test_hidden_states(residual):
    network, ids = causal("lrt", residual=residual, position="learned"), tokens(B, N)
    out = network(ids, output_hidden_states=True)
    assert len(out.hidden_states) == LAYERS + 1
    torch.testing.assert_close(out.hidden_states[0], network.decoder.embedding(ids))
    torch.testing.assert_close(out.hidden_states[1], network.decoder.layers[0](out.hidden_states[0]))
    last = network.decoder(ids).last_hidden_state
    torch.testing.assert_close(out.hidden_states[-1], last, atol=0, rtol=0)
    assert network(ids).hidden_states is None


def test_dropout_acts_in_training_only():
    network, ids = causal("lrt", hidden_dropout_prob=1.0, residual="post"), tokens(B, N)
    torch.testing.assert_close(network(ids).logits, plain_text.causal_lm(network, ids), atol=1e-12, rtol=1e-12)
    x = torch.zeros(B, N, d, dtype=torch.float64)
    for layer in network.decoder.layers:
        x = layer.feed_forward_norm(layer.attention_norm(x))
    torch.testing.assert_close(network.train()(ids).logits, network.score(x))


def test_every_parameter_learns():
    network, ids = causal("narrow lrt", residual="pre"), tokens(B, N)
    network(ids, labels=ids).loss.backward()
    still = {key for key, parameter in network.named_parameters() if parameter.grad is None or not parameter.grad.any()}
    assert still <= {f"decoder.layers.{i}.attention.projections.k.bias" for i in range(LAYERS)}


def test_the_scores_are_those_of_the_embedding_unless_untied():
    network = causal("narrow embedding")
    assert network.score.weight is network.decoder.embedding.word.weight
    assert network.get_output_embeddings() is network.score
    assert network.get_input_embeddings() is network.decoder.get_input_embeddings()
    untied = causal(tie_word_embeddings=False)
    assert untied.score.weight is not untied.decoder.embedding.word.weight


@pytest.mark.parametrize("size", [VOCABULARY + 4, VOCABULARY - 6])
def test_resize_token_embeddings(size):
    network, both = causal(), min(size, VOCABULARY)
    ids = torch.randint(both, (B, N))
    before = network(ids).logits.detach()
    network.resize_token_embeddings(size)
    assert network.config.vocab_size == size
    assert network.score.weight is network.decoder.embedding.word.weight
    after = network(ids).logits
    assert after.shape[-1] == size
    torch.testing.assert_close(after[..., :both], before[..., :both])


def test_the_decoder_alone():
    network, ids = causal(residual="pre"), tokens(B, N)
    decoder = GreenformerDecoder(network.config).double().eval()
    decoder.load_state_dict(network.decoder.state_dict())
    new = torch.nn.Embedding(VOCABULARY, d, dtype=torch.float64)
    assert not torch.equal(decoder(ids)[0], network.decoder(ids.flip(0))[0])
    torch.testing.assert_close(decoder(ids)[0], network.decoder(ids)[0], atol=0, rtol=0)
    decoder.set_input_embeddings(new)
    assert decoder.embedding.word is new
