"""Dropout in tiles: the backward pass drops the weights that the forward pass dropped."""

import inspect

import pytest
import torch
from pairs import FORMS, tiles

from greenformers.attention import Shape, attention_class, build

HEADS, DIM, N = 2, 3, 23
OPTIONS = {
    "sliding_window": {"window": 3, "dilation": (1, 2)},
    "cascade": {"base": 4},
    "local_blocks": {"block": 5},
    "sparse_strided": {"stride": 4},
    "sparse_fixed": {"stride": 4, "summary": 1},
    "blockwise": {"blocks": 3},
    "longformer": {"window": 3, "globals": 2},
    "bigbird": {"block": 2, "random": 2},
    "etc": {"globals": 2, "radius": 3, "clip": 1},
}
PADDING = torch.arange(N) < torch.tensor([N, 17])[:, None]

each_pattern = pytest.mark.parametrize(
    ("name", "causal"), FORMS, ids=[f"{name}{'-causal' * causal}" for name, causal in FORMS]
)


def mechanism(name, causal, dropout=0.4):
    torch.manual_seed(0)
    shape = Shape(heads=HEADS, head_dim=DIM, max_len=N, causal=causal)
    return build(name, shape, **OPTIONS[name], dropout=dropout).double().train()


def drawn():
    generator = torch.Generator().manual_seed(1)
    return list(torch.randn(3, 2, HEADS, N, DIM, generator=generator, dtype=torch.float64))


def test_every_pattern_has_dropout():
    assert {name for name, _ in FORMS} == set(OPTIONS)
    for name in OPTIONS:
        assert "dropout" in inspect.signature(attention_class(name)).parameters


@each_pattern
@pytest.mark.parametrize("size", [70, 2**19])
def test_gradients_are_those_of_finite_differences_under_the_same_draw(name, causal, size):
    module = mechanism(name, causal)

    def outputs(q, k, v):
        torch.manual_seed(3)
        return module(q, k, v, PADDING)

    with tiles(6, size):
        assert torch.autograd.gradcheck(outputs, [x.requires_grad_() for x in drawn()], fast_mode=True)


@each_pattern
def test_each_draw_is_its_own(name, causal):
    module, inputs = mechanism(name, causal), drawn()
    first, second = module(*inputs), module(*inputs)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    expected = module(*inputs)
    torch.manual_seed(3)
    assert torch.equal(module(*inputs), expected)


@each_pattern
def test_slices_and_heads_are_dropped_apart(name, causal):
    """Examples, heads and tiles have draws of their own: equal contents, different outputs."""
    module = mechanism(name, causal)
    q, k, v = (x[:1, :1].expand(2, HEADS, -1, -1) for x in drawn())
    with tiles(6, 70):
        out = module(q, k, v)
    assert not torch.equal(out[0, 0], out[1, 0])
    last = out[0, :, 4 * (N // 5) :]  # beyond the first tile; heads may see different keys
    assert not torch.equal(last[0], last[1])


@each_pattern
def test_a_weight_is_dropped_or_divided_by_what_is_kept(name, causal):
    """With equal scores and one value for each key, an output is among the few that a draw can give."""
    module, heads = mechanism(name, causal, dropout=0.5), HEADS
    q = torch.zeros(1, heads, N, DIM, dtype=torch.float64)
    for parameter in module.parameters():
        parameter.requires_grad_(False).zero_()
    for at in range(0, N, 5):
        v = torch.zeros_like(q)
        v[:, :, at] = 1.0
        weight = module.eval()(q, q, v)
        dropped = module.train()(q, q, v)
        assert torch.where((dropped - 2 * weight).abs() < 1e-12, 0.0, dropped).abs().max() < 1e-12
        assert 0.1 < (dropped[weight > 0] == 0).double().mean() < 0.9
