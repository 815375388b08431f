"""What a fresh LED lets through. Every variance is the mean over draws, so that sampling error is about 1 %."""

import pytest
import torch
from torch import nn

from greenformers.lowrank.linear import LED

SIZES = [(127, 131, 5), (131, 127, 127), (61, 257, 31), (257, 61, 13), (251, 251, 1)]


def output_variance(make, inputs, draws=400, tokens=61):
    """Mean square of the outputs of fresh projections without bias, for inputs of variance 1."""
    torch.manual_seed(0)
    with torch.no_grad():
        return torch.stack([make()(torch.randn(tokens, inputs)).square().mean() for _ in range(draws)]).mean()


@pytest.mark.parametrize(("n", "m", "rank"), SIZES)
def test_outputs_vary_as_those_of_nn_linear(n, m, rank):
    dense = output_variance(lambda: nn.Linear(n, m, bias=False), n)
    torch.testing.assert_close(dense, torch.tensor(1 / 3), atol=0, rtol=0.02)
    low_rank = output_variance(lambda: LED(n, m, rank, bias=False), n)
    torch.testing.assert_close(low_rank, dense, atol=0, rtol=0.04)


def test_two_stacked_linear_maps_give_a_third_of_it():
    n, m, rank = 127, 131, 31
    stacked = output_variance(lambda: nn.Sequential(nn.Linear(n, rank, bias=False), nn.Linear(rank, m, bias=False)), n)
    low_rank = output_variance(lambda: LED(n, m, rank, bias=False), n)
    torch.testing.assert_close(stacked, low_rank / 3, atol=0, rtol=0.04)


@pytest.mark.parametrize(("n", "m", "rank"), SIZES)
def test_the_product_has_the_deviation_asked_for(n, m, rank):
    torch.manual_seed(0)
    layer, squares = LED(n, m, rank), []
    for _ in range(400):
        layer.reset_parameters(std=0.07)
        squares.append(layer.weight.detach().square().mean())
    torch.testing.assert_close(torch.stack(squares).mean().sqrt(), torch.tensor(0.07), atol=0, rtol=0.02)


def test_codes_have_the_variance_of_the_input():
    torch.manual_seed(0)
    layer, x = LED(1009, 509, 251), torch.randn(101, 1009)
    variance = (x @ layer.encoder.weight.T).square().mean()
    torch.testing.assert_close(variance, torch.tensor(1.0), atol=0, rtol=0.02)


def test_bias_starts_at_zero():
    layer = LED(13, 11, 3)
    assert layer.bias.count_nonzero() == 0
    nn.init.ones_(layer.bias)
    layer.reset_parameters()
    assert layer.bias.count_nonzero() == 0
