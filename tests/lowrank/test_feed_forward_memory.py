"""What the low-rank feed-forward block keeps for the backward pass, and what it holds at its peak."""

import torch
import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks

from greenformers.lowrank.feed_forward import sliced_feed_forward
from greenformers.lowrank.linear import LED
from greenformers.measure.memory import peak_memory

tokens, d, f, up_rank, down_rank = 4099, 67, 509, 5, 7
UP, DOWN = LED(d, f, up_rank), LED(f, d, down_rank)


def fast(x):
    return sliced_feed_forward(x, UP, DOWN, F.gelu)


def plain(x):
    return DOWN(F.gelu(UP(x)))


def kept_numbers(form):
    """How many numbers the graph keeps, each tensor once, the parameters left out."""
    parameters = {parameter.data_ptr() for led in (UP, DOWN) for parameter in led.parameters()}
    sizes = {}

    def pack(tensor):
        if tensor.data_ptr() not in parameters:
            sizes[tensor.data_ptr()] = tensor.numel()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        out = form(torch.randn(tokens, d, requires_grad=True))
    assert out.requires_grad
    return sum(sizes.values())


def test_keeps_the_codes_and_never_the_wide_activation():
    codes = tokens * (d + up_rank + down_rank)
    assert kept_numbers(fast) == codes
    assert kept_numbers(plain) == codes + 2 * tokens * f


def peak(form, train):
    x = torch.randn(tokens, d, requires_grad=train)

    def call():
        with torch.set_grad_enabled(train):
            out = form(x)
            if train:
                out.sum().backward()

    call()
    peak_bytes = peak_memory(call)
    UP.zero_grad()
    DOWN.zero_grad()
    return peak_bytes


def test_the_wide_activation_is_never_whole():
    wide = 4 * tokens * f
    assert peak(fast, train=False) < wide / 2 < wide < peak(plain, train=False)
    assert peak(fast, train=True) < wide < 3 * wide < peak(plain, train=True)
