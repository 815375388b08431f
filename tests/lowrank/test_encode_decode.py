import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from greenformers.lowrank.linear import LED, decode, encode

B, N, n, m = 2, 7, 13, 11
MIXES = [(3, 5, 2), (None, 5, 2), (3, None, 2), (3, 5, None), (None, 5, None), (None, None, None), (7,), (1, 1, 1)]


def linear_layers_of(ranks, bias=True):
    items = [nn.Linear(n, m, bias) if rank is None else LED(n, m, rank, bias) for rank in ranks]
    for item in items:
        if bias:
            nn.init.normal_(item.bias)
    return [item.double() for item in items]


def inputs():
    return torch.randn(B, N, n, dtype=torch.float64, requires_grad=True)


class Products(TorchDispatchMode):
    """Counts matrix products."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("ranks", MIXES)
def test_the_shared_product_equals_each_map_by_itself(ranks, bias):
    projections, x = linear_layers_of(ranks, bias), inputs()
    outputs = [decode(item, code) for item, code in zip(projections, encode(projections, x), strict=True)]
    expected = [item(x) for item in projections]
    torch.testing.assert_close(outputs, expected, atol=1e-12, rtol=1e-12)

    leaves = [x, *nn.ModuleList(projections).parameters()]
    g = [torch.randn_like(out) for out in outputs]
    torch.testing.assert_close(
        torch.autograd.grad(outputs, leaves, g), torch.autograd.grad(expected, leaves, g), atol=1e-12, rtol=1e-12
    )


@pytest.mark.parametrize("ranks", MIXES)
def test_the_input_is_multiplied_once(ranks):
    projections, x = linear_layers_of(ranks), inputs()
    with Products() as products:
        codes = encode(projections, x)
    assert products.count == (set(ranks) != {None})
    for rank, code in zip(ranks, codes, strict=True):
        assert code is x if rank is None else code.shape == (B, N, rank)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rank", [3, None])
def test_codes_summed_over_positions_carry_the_bias_as_often_as_they_were_kept(rank, bias):
    (item,), x = linear_layers_of([rank], bias), inputs()
    E = torch.randn(5, N, dtype=torch.float64)  # five sums over the N positions
    (code,) = encode([item], x)
    counts = E.sum(1)[None, :, None].expand(B, -1, -1)
    torch.testing.assert_close(decode(item, E @ code, counts), E @ item(x), atol=1e-12, rtol=1e-12)
