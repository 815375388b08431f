"""Scores by distance in tiles: of several tiles and blocks as of one, and never all pairs at once."""

import pytest
import torch
from cases import holes

from greenformers._torch import OperatorWatch, leaves
from greenformers.attention import Shape, _relative, _relative_tiles, build


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of 4 queries, 8 keys and 2 heads, also of few queries."""
    monkeypatch.setattr(_relative, "FEW", 0)
    monkeypatch.setattr(_relative_tiles, "ON_CPU", _relative_tiles.Sizes(queries=4, keys=8, heads=2))


def mechanism(causal, heads=3, dim=5):
    torch.manual_seed(0)
    module = build("transformer_xl", Shape(heads, dim, 67, causal=causal)).double()
    with torch.no_grad():
        module.u.normal_()
        module.v.normal_()
    return module


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize(
    ("causal", "queries", "keys"),
    [(True, 13, 13), (True, 13, 29), (True, 4, 8), (True, 1, 5), (True, 29, 29), (False, 13, 13), (False, 29, 29)],
)
def test_many_tiles_are_the_formula(causal, queries, keys, masked):
    module = mechanism(causal)
    q, k, v = (torch.randn(2, 3, n, 5, dtype=torch.float64, requires_grad=True) for n in (queries, keys, keys))
    mask = holes(keys) if masked else None
    out, expected = module(q, k, v, mask), _relative.reference(module, q, k, v, mask)
    torch.testing.assert_close(out, expected)
    weight = torch.randn_like(out)
    inputs = (q, k, v, module.u, module.v, module.W_R)
    own, others = (torch.autograd.grad((x * weight).sum(), inputs) for x in (out, expected))
    torch.testing.assert_close(own, others)


@pytest.mark.usefixtures("small_tiles")
def test_with_dropout_the_backward_pass_drops_the_same_weights():
    module = build("transformer_xl", Shape(3, 5, 67, causal=True), dropout=0.3).double().train()
    inputs = [torch.randn(1, 3, 11, 5, dtype=torch.float64, requires_grad=True) for _ in range(3)]

    def outputs(*given):
        torch.manual_seed(0)
        return module(*given)

    assert torch.autograd.gradcheck(outputs, inputs, fast_mode=True)


def test_no_tensor_holds_all_pairs():
    class Largest(OperatorWatch):
        size = 0

        def saw(self, operator, arguments, result):
            del operator, arguments
            sizes = [x.untyped_storage().nbytes() for x in leaves(result) if isinstance(x, torch.Tensor)]
            self.size = max([self.size, *sizes])

    N = 2048
    module = mechanism(True, heads=2, dim=8).float()
    inputs = [torch.randn(1, 2, N, 8, requires_grad=True) for _ in range(3)]
    with Largest() as seen:
        module(*inputs).sum().backward()
    assert 0 < seen.size < 0.1 * 4 * 2 * N * N


def test_distances_are_computed_once_and_again_after_a_step():
    module = mechanism(True)
    q, k, v = torch.randn(3, 1, 3, 40, 5, dtype=torch.float64)
    with torch.no_grad():
        first = module(q, k, v)
        stored = module._kept
        assert torch.equal(module(q, k, v), first)
        assert module._kept is stored
        module.W_R.mul_(3.0)
        torch.testing.assert_close(module(q, k, v), _relative.reference(module, q, k, v))
        assert module._kept is not stored
        torch.testing.assert_close(module(q, k[:, :, :40], v), module(q, k, v))
        module(q[:, :, :20], k, v)
        torch.testing.assert_close(module(q[:, :, 20:], k, v), _relative.reference(module, q[:, :, 20:], k, v))


def test_distances_are_kept_while_a_cache_grows(monkeypatch):
    module, x = build("transformer_xl", Shape(2, 4, 64, causal=True)).eval(), torch.randn(1, 2, 40, 4)
    calls = []
    plain = type(module)._waves
    monkeypatch.setattr(type(module), "_waves", lambda *given: calls.append(given) or plain(*given))
    with torch.no_grad():
        for n in range(30, 41):
            step = module(x[:, :, n - 1 : n], x[:, :, :n], x[:, :, :n])
            with torch.enable_grad():
                whole = module(x[:, :, :n], x[:, :, :n], x[:, :, :n])
            torch.testing.assert_close(step[:, :, 0], whole[:, :, -1].detach())
    assert len([given for given in calls if given[1] == 1]) == 1
