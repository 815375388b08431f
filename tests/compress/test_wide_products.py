"""16-bit products of linear layers in float32, where the processor has none."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from greenformers.compress.wide_products import WideProducts


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
def test_products_are_rounded_once(dtype: torch.dtype, bias: bool) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(300, 40, bias=bias, dtype=dtype), torch.randn(2, 7, 300).to(dtype)
    exact = F.linear(x.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double())
    with torch.no_grad(), WideProducts(on=True):
        y = layer(x)
    assert y.dtype == dtype
    # Sums of float32 are nearly exact: but for a few that lie on the border, they are the rounded exact ones.
    assert (y != exact.to(dtype)).float().mean() < 0.01
    torch.testing.assert_close(y.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-4)


def test_other_layers_are_left_as_they_are() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(300, 40), torch.randn(7, 300)
    for on in (True, False):
        with torch.no_grad(), WideProducts(on=on):
            assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    half = layer.bfloat16()
    with torch.no_grad(), WideProducts(on=False):
        assert torch.equal(half(x.bfloat16()), F.linear(x.bfloat16(), half.weight, half.bias))
    with WideProducts(on=True), pytest.raises(RuntimeError):
        half(x)
