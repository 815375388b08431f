"""The feed-forward block in slices of positions: the same numbers, less memory."""

import pytest
import torch

from greenformers.feed_forward import FeedForward
from greenformers.measure.memory import peak_memory
from greenformers.model import GreenformerConfig
from greenformers.model.block import feed_forward_of

SIZES = {"vocab_size": 31, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40, "num_hidden_layers": 1}


def make(**given) -> FeedForward:
    torch.manual_seed(0)
    return feed_forward_of(GreenformerConfig(**SIZES | given), 0)


@pytest.mark.parametrize("chunk", [1, 4, 26, 100, None])
@pytest.mark.parametrize("rank", [None, 3, {"up": 3}, {"down": 3}], ids=str)
@pytest.mark.parametrize("activation", ["gelu", "relu", "silu"])
def test_equal_to_the_whole(chunk, rank, activation):
    given = {"rank": rank, "hidden_act": activation}
    whole, sliced = (
        make(**given).double(),
        make(**given, feed_forward="chunked", feed_forward_options={"chunk": chunk}).double(),
    )
    x = torch.randn(2, 13, 24, dtype=torch.float64, requires_grad=True)
    way = torch.randn(2, 13, 24, dtype=torch.float64)
    out, expected = sliced(x), whole(x)
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)
    grads, expected_grads = (torch.autograd.grad(y, [x, *each.parameters()], way)
                     for y, each in ((out, sliced), (expected, whole)))  # fmt: skip
    torch.testing.assert_close(grads, expected_grads, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("chunk", [5, None])
def test_under_autocast_too(chunk):
    whole, sliced = make(), make(feed_forward="chunked", feed_forward_options={"chunk": chunk})
    x = torch.randn(2, 13, 24, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out, expected = sliced(x), whole(x)
    assert out.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(out, expected)
    grad, expected_grad = (torch.autograd.grad(y.float().sum(), x)[0] for y in (out, expected))
    torch.testing.assert_close(grad, expected_grad)


@pytest.mark.parametrize("autocast", [False, True])
def test_the_wide_activation_is_not_kept(autocast):
    wide = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 1024}
    peaks = {}
    for name in ("dense", "chunked"):
        block = make(**wide, feed_forward=name, feed_forward_options={"chunk": 32} if name == "chunked" else None)
        for parameter in block.parameters():
            parameter.requires_grad_(False)
        x = torch.randn(1, 1024, 32, requires_grad=True)

        def step(block=block, x=x):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                out = block(x)
            torch.autograd.grad(out.float().sum(), x)

        peaks[name] = peak_memory(step)
    assert peaks["chunked"] < peaks["dense"] / 4


def test_frozen_maps_get_no_gradient():
    block = make(feed_forward="chunked", feed_forward_options={"chunk": 4})
    block.up.weight.requires_grad_(False)
    block(torch.randn(1, 9, 24)).sum().backward()
    assert block.up.weight.grad is None
    assert all(parameter.grad is not None for parameter in (block.up.bias, block.down.weight, block.down.bias))


def test_an_activation_that_learns_is_refused():
    with pytest.raises(
        ValueError, match=r"^activation must have no parameters where feed_forward is chunked, got PReLU$"
    ):
        make(hidden_act="prelu", feed_forward="chunked")


def test_slices_add_up_in_float32():
    whole, sliced = make(), make(feed_forward="chunked", feed_forward_options={"chunk": 1})
    x = torch.randn(24).bfloat16().expand(1, 2048, 24).contiguous()
    for block in (whole.bfloat16(), sliced.bfloat16()):
        block(x).float().sum().backward()
    for ours, theirs in zip(sliced.parameters(), whole.parameters(), strict=True):
        assert ours.grad.dtype == torch.bfloat16
        size = theirs.grad.abs().max().item()
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0.02, atol=0.01 * size)
