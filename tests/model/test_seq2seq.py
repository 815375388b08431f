"""The encoder-decoder against its plain form."""

import plain_text
import pytest
import torch
from networks import LAYERS, VOCABULARY, padding
from text_networks import DECODER_LAYERS, PAD, PAIRS, START, left, pair, tokens

from greenformers.lowrank.linear import LED

B, M, N = 3, 17, 13
SIDES = {
    "whole": (None, None),
    "both": (padding(B, M).flip(0), padding(B, N)),
    "target on the left": (None, left(padding(B, N))),
}


@pytest.mark.parametrize(("residual", "side"), [("post", "whole"), ("pre", "both"), ("post", "target on the left")])
@pytest.mark.parametrize("name", PAIRS)
def test_equals_its_plain_form(name, residual, side):
    network, ids, target = pair(name, residual=residual), tokens(B, M), tokens(B, N)
    mask, target_mask = SIDES[side]
    given = (ids, mask, target, target_mask)
    logits, expected = network(*given).logits, plain_text.seq2seq(network, *given)
    assert expected.requires_grad
    torch.testing.assert_close(logits, expected, atol=1e-12, rtol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(network(*given).logits, expected.detach(), atol=1e-12, rtol=1e-12)
    leaves, g = list(network.parameters()), torch.randn(B, N, VOCABULARY, dtype=torch.float64)
    gradients = torch.autograd.grad(logits, leaves, g)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, leaves, g), atol=1e-10, rtol=1e-11)


def test_slots_of_each_layer_are_where_the_configuration_puts_them():
    network = pair("attention of each layer")
    crosses = [layer.cross_attention.mechanism for layer in network.decoder.layers]
    assert [type(mechanism).__name__ for mechanism in crosses] == ["Linformer", "Full", "Linformer"]
    assert (crosses[0].k, crosses[2].k) == (3, 7)
    inner = [layer.attention.mechanism for layer in network.encoder.layers]
    assert [type(mechanism).__name__ for mechanism in inner] == ["Full", "Linformer"]
    ranks = {name: module.rank for name, module in network.named_modules() if isinstance(module, LED)}
    first = "decoder.layers.0."
    assert {name.removeprefix(first) for name in ranks if name.startswith(first)} == {
        *(
            f"{block}.{name}"
            for block in ("attention", "cross_attention")
            for name in ("output", *map("projections.{}".format, "qkv"))
        ),
        "feed_forward.up",
        "feed_forward.down",
    }
    assert {name: rank for name, rank in ranks.items() if not name.startswith(first)} == {
        "encoder.layers.1.attention.projections.k": 3,
        "decoder.layers.1.cross_attention.projections.k": 2,
        "decoder.layers.2.cross_attention.projections.v": 5,
        "decoder.layers.2.cross_attention.projections.k": 11,
    }


def test_one_number_is_the_rank_of_every_map():
    network = pair("lrt")
    projections = [module for module in network.modules() if isinstance(module, LED)]
    assert len(projections) == 6 * LAYERS + 10 * DECODER_LAYERS
    assert {item.rank for item in projections} == {7}


def test_teacher_forcing_shifts_the_labels():
    labels = torch.tensor([[17, 13, 19, 23], [29, -100, 31, -100]])
    expected = torch.tensor([[START, 17, 13, 19], [START, 29, PAD, 31]])
    before = labels.clone()
    assert torch.equal(pair().prepare_decoder_input_ids_from_labels(labels), expected)
    assert torch.equal(labels, before)


def test_labels_stand_for_the_target():
    network, ids, labels = pair(), tokens(B, M), tokens(B, N)
    shifted = network.prepare_decoder_input_ids_from_labels(labels)
    torch.testing.assert_close(
        network(ids, labels=labels).logits, plain_text.seq2seq(network, ids, None, shifted), atol=1e-12, rtol=1e-12
    )
    # Given both, the target is what is given.
    torch.testing.assert_close(
        network(ids, decoder_input_ids=ids, labels=tokens(B, M)).logits, network(ids, decoder_input_ids=ids).logits
    )


@pytest.mark.parametrize("name", ["dense", "lrt+linformer"])
def test_an_encoders_output_stands_for_the_source(name):
    network, ids, target, mask = pair(name), tokens(B, M), tokens(B, N), padding(B, M)
    memory = network.encoder(ids, mask)
    expected = network(ids, mask, target)
    for given in (memory, memory.to_tuple()):
        out = network(None, mask, target, encoder_outputs=given)
        torch.testing.assert_close(out.logits, expected.logits, atol=0, rtol=0)
    torch.testing.assert_close(expected.encoder_last_hidden_state, memory.last_hidden_state, atol=0, rtol=0)


@pytest.mark.parametrize("residual", ["post", "pre"])
def test_hidden_states_and_tuple(residual):
    network, ids, target = pair(residual=residual), tokens(B, M), tokens(B, N)
    out = network(ids, decoder_input_ids=target, output_hidden_states=True)
    encoded = network.encoder(ids, output_hidden_states=True)
    assert (len(out.encoder_hidden_states), len(out.decoder_hidden_states)) == (LAYERS + 1, DECODER_LAYERS + 1)
    torch.testing.assert_close(out.encoder_hidden_states, encoded.hidden_states, atol=0, rtol=0)
    first = network.decoder.layers[0](network.decoder.embedding(target), encoded.last_hidden_state)
    torch.testing.assert_close(out.decoder_hidden_states[1], first)
    torch.testing.assert_close(network.score(out.decoder_hidden_states[-1]), out.logits)
    logits, memory = network(ids, decoder_input_ids=target, return_dict=False)
    torch.testing.assert_close((logits, memory), (out.logits, encoded.last_hidden_state), atol=0, rtol=0)


@pytest.mark.parametrize("name", ["narrow lrt", "lrt+linformer"])
def test_every_parameter_learns(name):
    network, ids = pair(name, residual="pre"), tokens(B, M)
    network(ids, labels=tokens(B, N)).loss.backward()
    still = {key for key, parameter in network.named_parameters() if parameter.grad is None or not parameter.grad.any()}
    # Softmax does not see what is added to every key alike.
    assert {key for key in still if not key.endswith("projections.k.bias")} == set()


def test_one_matrix_of_words_unless_untied():
    network = pair("narrow embedding")
    words = network.encoder.embedding.word.weight
    assert network.decoder.embedding.word.weight is words
    assert network.score.weight is words
    assert network.get_output_embeddings() is network.score
    untied = pair(tie_word_embeddings=False)
    ours = {untied.encoder.embedding.word.weight, untied.decoder.embedding.word.weight, untied.score.weight}
    assert len(ours) == 3


def test_resize_token_embeddings():
    network, ids = pair(), tokens(B, M)
    before = network(ids, decoder_input_ids=ids).logits.detach()
    network.resize_token_embeddings(41)
    words = network.encoder.embedding.word.weight
    assert network.decoder.embedding.word.weight is words
    assert network.score.weight is words
    after = network(ids, decoder_input_ids=ids).logits
    assert after.shape == (B, M, 41)
    torch.testing.assert_close(after[..., :VOCABULARY], before)


def test_resize_token_embeddings_that_are_not_tied():
    network = pair(tie_word_embeddings=False)
    before = network.decoder.embedding.word.weight.detach().clone()
    network.resize_token_embeddings(41)
    assert torch.equal(network.decoder.embedding.word.weight[:VOCABULARY], before)
    assert network(tokens(2, 5), decoder_input_ids=torch.full((2, 3), 40)).logits.shape == (2, 3, 41)
