"""What a position may not see changes nothing of its scores."""

import pytest
import torch
from networks import VOCABULARY, padding
from text_networks import PAIRS, causal, left, pair, tokens

B, M, N = 3, 17, 13
LONG = 307  # longer than a block of the attention kernel


def changed(ids, place):
    """Other tokens at `place` and after it, every one of them."""
    other = ids.clone()
    other[:, place:] = (ids[:, place:] + torch.randint(1, VOCABULARY, ids[:, place:].shape)) % VOCABULARY
    assert (other[:, place:] != ids[:, place:]).all()
    return other


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["dense", "lrt", "narrow embedding"])
def test_the_future_changes_no_bit_of_a_causal_lm(name, masked, grad):
    network, ids = causal(name, torch.float32, residual="pre"), tokens(B, N)
    mask = left(padding(B, N)) if masked else None
    with torch.set_grad_enabled(grad):
        before = network(ids, mask).logits
        for place in (1, 2, 5, 8, N - 1):
            after = network(changed(ids, place), mask).logits
            assert torch.equal(after[:, :place], before[:, :place])
            assert not torch.isclose(after[:, place], before[:, place]).all(-1).any()


@pytest.mark.parametrize("masked", [False, True])
def test_the_future_changes_no_bit_of_a_long_sequence(masked):
    network = causal("lrt", torch.float32, max_position_embeddings=LONG)
    ids = tokens(2, LONG)
    mask = left(padding(2, LONG)) if masked else None
    with torch.no_grad():
        before = network(ids, mask).logits
        for place in (1, 31, 32, 127, 256, LONG - 1):
            after = network(changed(ids, place), mask).logits
            assert torch.equal(after[:, :place], before[:, :place])
            assert not torch.equal(after[:, place], before[:, place])


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", ["dense", "lrt+linformer", "linformer, no sharing"])
def test_the_future_of_the_target_changes_no_bit(name, grad):
    network, ids, target, mask = pair(name, torch.float32), tokens(B, M), tokens(B, N), padding(B, M)
    with torch.set_grad_enabled(grad):
        before = network(ids, mask, target).logits
        for place in (1, 2, 5, 8, N - 1):
            after = network(ids, mask, changed(target, place)).logits
            assert torch.equal(after[:, :place], before[:, :place])
            assert not torch.isclose(after[:, place], before[:, place]).all(-1).any()


def test_no_gradient_comes_from_the_future():
    network, ids = causal("lrt"), tokens(B, N)
    x = network.decoder.embedding(ids).detach().requires_grad_()
    network.decoder.embedding.forward = lambda *_, **__: x
    for place in range(N):
        (gradient,) = torch.autograd.grad(network(ids).logits[:, place].square().sum(), x)
        assert gradient[:, place + 1 :].eq(0).all()
        assert gradient[:, : place + 1].ne(0).any(-1).all()


@pytest.mark.parametrize("name", PAIRS)
def test_padding_of_the_source_changes_nothing(name):
    network, ids, target, mask = pair(name), tokens(B, M), tokens(B, N), padding(B, M)
    logits = network(ids, mask, target).logits
    other = ids.where(mask, tokens(B, M).sub(12))
    torch.testing.assert_close(network(other, mask, target).logits, logits, atol=1e-12, rtol=1e-12)
    for i, length in enumerate(mask.sum(1).tolist()):
        alone = network(ids[i : i + 1, :length], decoder_input_ids=target[i : i + 1]).logits[0]
        torch.testing.assert_close(logits[i], alone, atol=1e-12, rtol=1e-12)
    assert not torch.allclose(network(ids, decoder_input_ids=target).logits[1:], logits[1:], atol=1e-3)


@pytest.mark.parametrize("side", [padding(B, N), left(padding(B, N))], ids=["right", "left"])
@pytest.mark.parametrize("name", ["dense", "lrt"])
def test_what_stands_in_padding_changes_nothing_of_a_causal_lm(name, side):
    network, ids = causal(name), tokens(B, N)
    other = ids.where(side, ids - 11)
    assert torch.equal(other == ids, side)
    torch.testing.assert_close(network(other, side).logits[side], network(ids, side).logits[side], atol=1e-12, rtol=0)
