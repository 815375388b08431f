from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import gradcheck

from greenformers.lowrank import feed_forward
from greenformers.lowrank.feed_forward import _SlicedInner, sliced_feed_forward
from greenformers.lowrank.linear import LED

d, f = 13, 31
ACTIVATIONS = {"gelu": F.gelu, "relu": F.relu, "silu": F.silu}
TOKENS = (1, 255, 256, 257, 1000)
CLOSE = {torch.float64: {"atol": 1e-12, "rtol": 1e-12}, torch.float32: {"atol": 1e-5, "rtol": 1e-5}}


class Block(nn.Module):
    """The two factorised projections, of different ranks, and their plain composition."""

    def __init__(self, activation=F.gelu, bias=True):
        super().__init__()
        self.up, self.down, self.activation = LED(d, f, 5, bias), LED(f, d, 7, bias), activation
        for led in (self.up, self.down):
            if bias:
                nn.init.normal_(led.bias)

    def forward(self, x):
        return sliced_feed_forward(x, self.up, self.down, self.activation)

    def plain(self, x):
        return self.down(self.activation(self.up(x)))


def compare(block, x, g, close):
    """Outputs and the gradient of every input, against the plain form."""
    leaves = [x, *(parameter for parameter in block.parameters() if parameter.requires_grad)]
    out, expected = block(x), block.plain(x)
    torch.testing.assert_close(out, expected, **close)
    torch.testing.assert_close(torch.autograd.grad(out, leaves, g), torch.autograd.grad(expected, leaves, g), **close)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", CLOSE)
def test_equals_the_plain_form(dtype, name, tokens, bias):
    block = Block(ACTIVATIONS[name], bias).to(dtype)
    x = torch.randn(tokens, d, dtype=dtype, requires_grad=True)
    compare(block, x, torch.randn(tokens, d, dtype=dtype) / tokens**0.5, CLOSE[dtype])


@pytest.mark.parametrize("shape", [(), (1, 1), (2, 128), (3, 86), (257, 1), (2, 3, 43), (0,), (2, 0)])
def test_any_leading_shape(shape):
    x = torch.randn(*shape, d, dtype=torch.float64, requires_grad=True)
    compare(Block().double(), x, torch.randn_like(x), CLOSE[torch.float64])


def non_contiguous():
    B, N = 3, 101
    return {
        "transposed": torch.randn(N, B, d, dtype=torch.float64).transpose(0, 1),
        "columns first": torch.randn(B, d, N, dtype=torch.float64).mT,
        "every second": torch.randn(B, 2 * N, d, dtype=torch.float64)[:, ::2],
        "expanded": torch.randn(1, 1, d, dtype=torch.float64).expand(B, N, d),
    }


@pytest.mark.parametrize("kind", non_contiguous())
def test_non_contiguous_input_and_gradient(kind):
    x, g = non_contiguous()[kind], non_contiguous()[kind]
    assert not x.is_contiguous()
    assert not g.is_contiguous()
    compare(Block().double(), x.requires_grad_(), g, CLOSE[torch.float64])


def test_non_contiguous_gradient_of_the_inner_function():
    block = Block().double()
    code = torch.randn(3, 101, 5, dtype=torch.float64, requires_grad=True)
    weights = (block.up.decoder.weight, block.up.bias, block.down.encoder.weight)
    D, b, E = weights
    out, expected = _SlicedInner.apply(code, *weights, F.gelu, None), F.gelu(code @ D.T + b) @ E.T
    g = torch.randn(101, 3, 7, dtype=torch.float64).transpose(0, 1)
    leaves = [code, *weights]
    torch.testing.assert_close(
        torch.autograd.grad(out, leaves, g), torch.autograd.grad(expected, leaves, g), **CLOSE[torch.float64]
    )


def test_frozen_factors_get_no_gradient_and_leave_the_others_right():
    block = Block().double()
    for frozen in (block.up.decoder.weight, block.down.encoder.weight, block.up.bias):
        frozen.requires_grad_(False)
    x = torch.randn(257, d, dtype=torch.float64, requires_grad=True)
    compare(block, x, torch.randn_like(x), CLOSE[torch.float64])
    block(x).sum().backward()
    assert block.up.decoder.weight.grad is None
    assert block.down.encoder.weight.grad is None
    assert block.up.bias.grad is None


@pytest.mark.parametrize("bias", [True, False])
def test_gradcheck_over_several_slices(bias, monkeypatch):
    monkeypatch.setattr(feed_forward, "WIDE", 2 * f)
    block = Block(F.silu, bias).double()
    x = torch.randn(5, d, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x, *_: block(x), (x, *block.parameters()))


@pytest.mark.parametrize("power", [1, 2])
def test_second_derivatives(power):
    """For a loss that is linear in the output too, whose gradient there is constant."""
    block, x = Block().double(), torch.randn(7, d, dtype=torch.float64, requires_grad=True)

    def second(run):
        (first,) = torch.autograd.grad((run(x) ** power).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), [x, *block.parameters()], allow_unused=True)

    torch.testing.assert_close(second(block), second(block.plain))


def test_transforms_of_functions():
    block, x = Block().double(), torch.randn(7, 3, d, dtype=torch.float64, requires_grad=True)
    each = torch.func.vmap(torch.func.grad(lambda x: block(x).square().sum()))(x)
    torch.testing.assert_close(each, torch.autograd.grad(block.plain(x).square().sum(), x)[0])


def test_without_gradients():
    block, x = Block(), torch.randn(257, d)
    with torch.no_grad():
        torch.testing.assert_close(block(x), block.plain(x))
    with torch.inference_mode():
        torch.testing.assert_close(block(x), block.plain(x))


def test_a_copy_and_a_reloaded_state_give_the_same_numbers():
    block, other, x = Block(), Block(), torch.randn(257, d)
    other.load_state_dict(block.state_dict())
    torch.testing.assert_close(other(x), block(x), atol=0, rtol=0)
    torch.testing.assert_close(deepcopy(block)(x), block(x), atol=0, rtol=0)
