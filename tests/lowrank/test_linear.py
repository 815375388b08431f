from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from greenformers.lowrank.linear import LED, decode, encode, linear_layer
from greenformers.measure.parameters import parameters

n, m, r = 13, 11, 3


def led(bias=True, **options):
    layer = LED(n, m, r, bias=bias).to(**options)
    if bias:
        nn.init.normal_(layer.bias)
    return layer


@pytest.mark.parametrize("shape", [(n,), (7, n), (2, 7, n), (2, 5, 7, n), (0, n)])
@pytest.mark.parametrize("bias", [True, False])
def test_equals_the_dense_map_of_its_weight(shape, bias):
    layer, x = led(bias, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    expected = x @ layer.weight.T
    expected = expected + layer.bias if bias else expected
    torch.testing.assert_close(layer(x), expected, atol=1e-12, rtol=1e-12)


def test_weight_is_as_nn_linear_holds_it():
    layer = led()
    assert layer.weight.shape == nn.Linear(n, m).weight.shape
    assert torch.linalg.matrix_rank(layer.weight) == r
    expected = torch.einsum("or,ri->oi", layer.decoder.weight, layer.encoder.weight)
    torch.testing.assert_close(layer.weight, expected)


def test_gradients_are_those_of_the_dense_map():
    layer, x = led(dtype=torch.float64), torch.randn(7, n, dtype=torch.float64, requires_grad=True)
    inputs, g = (x, layer.encoder.weight, layer.decoder.weight, layer.bias), torch.randn(7, m, dtype=torch.float64)
    expected = torch.autograd.grad(F.linear(x, layer.weight, layer.bias), inputs, g)
    torch.testing.assert_close(torch.autograd.grad(layer(x), inputs, g), expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("rank", [1, 3, 11])
def test_parameters(rank):
    assert parameters(LED(n, m, rank)) == rank * (m + n) + m
    assert parameters(LED(n, m, rank, bias=False)) == rank * (m + n)


@pytest.mark.parametrize(("sizes", "limit"), [((n, m), m), ((m, n), m), ((n, n), n)])
def test_rank_out_of_range(sizes, limit):
    LED(*sizes, limit)
    for rank in (-1, 0, limit + 1):
        with pytest.raises(ValueError, match="rank must be") as caught:
            LED(*sizes, rank)
        assert str(caught.value) == f"rank must be in 1..{limit} for a {sizes[0]} x {sizes[1]} linear layer, got {rank}"


def test_state_dict():
    first, second = led(), led()
    assert {name: tuple(x.shape) for name, x in first.state_dict().items()} == {
        "encoder.weight": (r, n),
        "decoder.weight": (m, r),
        "bias": (m,),
    }
    assert set(led(bias=False).state_dict()) == {"encoder.weight", "decoder.weight"}
    second.load_state_dict(first.state_dict())
    x = torch.randn(7, n)
    torch.testing.assert_close(second(x), first(x), atol=0, rtol=0)


def test_deepcopy_is_equal_and_apart():
    layer, x = led(), torch.randn(7, n)
    before = layer(x)
    copy = deepcopy(layer)
    torch.testing.assert_close(copy(x), before, atol=0, rtol=0)
    with torch.no_grad():
        copy.encoder.weight.zero_()
    torch.testing.assert_close(layer(x), before, atol=0, rtol=0)


def test_repr():
    for bias in (True, False):
        assert f"13, 11, rank=3, bias={bias}" in repr(LED(n, m, r, bias))


def test_what_takes_a_factors_place_is_called():
    """As PEFT puts its layers in the place of linear ones: computed from the weights, they would be without effect."""
    layer, x, seen = led(), torch.randn(7, n), []
    before = layer(x)
    layer.encoder.register_forward_hook(lambda *_: seen.append("encoder"))
    torch.testing.assert_close(layer(x), before)
    assert seen == ["encoder"]
    layer.decoder = nn.Sequential(layer.decoder, nn.Hardtanh(-0.1, 0.1))
    assert (layer(x) - layer.bias).abs().max() <= 0.1 + 1e-6
    (code,) = encode([layer], x)
    torch.testing.assert_close(decode(layer, code), layer(x))
    assert seen == ["encoder"] * 4


def test_the_weight_is_computed_where_it_is_used():
    """T5 asks for the type of a weight at each call, for which both factors were multiplied."""
    layer = led()
    with FlopCounterMode(display=False) as counter:
        assert (layer.weight.shape, layer.weight.dtype, layer.weight.device) == (
            (m, n),
            torch.float32,
            torch.device("cpu"),
        )
        assert len(layer.weight) == m
        assert layer.weight.size(1) == n
    assert counter.get_total_flops() == 0
    layer.weight.sum().backward()
    assert layer.encoder.weight.grad.abs().sum() > 0
    assert layer.double().weight.dtype == torch.float64
    with pytest.raises(RuntimeError, match="computed from others"):
        layer.weight.data = torch.zeros(m, n)


def test_linear_layer_is_dense_without_a_rank():
    dense, low_rank = linear_layer(n, m, None), linear_layer(n, m, r)
    assert type(dense) is nn.Linear
    assert (dense.in_features, dense.out_features) == (n, m)
    assert type(low_rank) is LED
    assert (low_rank.in_features, low_rank.out_features, low_rank.rank) == (n, m, r)
