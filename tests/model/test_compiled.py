"""One layer through torch.compile without graph breaks. Its backend runs the traced graph as it is."""

import pytest
import torch
from networks import FOUR, d, layer, padding

B, N = 3, 13


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


# What these have is what the others have one by one.
some = pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.slow) for name in FOUR[:-1]), FOUR[-1], "mixed ranks"]
)


@some
def test_inference(name):
    block, x, mask = layer(name), torch.randn(B, N, d, dtype=torch.float64), padding(B, N)
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, mask), block(x, mask), atol=1e-12, rtol=1e-12)


@some
def test_training(name):
    block, mask = layer(name).train(), padding(B, N)
    x, g = (torch.randn(B, N, d, dtype=torch.float64, requires_grad=True) for _ in range(2))
    # Without a search for what to recompute, which changes no value.
    compiled = torch.compile(block, backend="aot_eager_default_partitioner", fullgraph=True)
    leaves = [x, *block.parameters()]
    out, expected = compiled(x, mask), block(x, mask)
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad(out, leaves, g), torch.autograd.grad(expected, leaves, g), atol=1e-11, rtol=1e-11
    )
