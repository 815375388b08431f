"""The order in which units go, beside a loop that fits the rest anew for each unit that may go next."""

import pytest
import torch
from test_neurons import lively, texts
from torch import Tensor

from greenformers.solve.feed_forward import feed_forwards
from greenformers.solve.loss import own
from greenformers.solve.refit import DAMPING
from greenformers.solve.unit_choice import curvatures
from greenformers.solve.unit_order import BLOCK, order


def damped(square: Tensor) -> Tensor:
    return square + DAMPING * square.diagonal().mean() * torch.eye(len(square), dtype=square.dtype)


def lost(C: Tensor, W: Tensor, G: Tensor, rows: list[int]) -> float:
    """tr G D^T C D of the least change D of a weight that sets these rows to 0: all others are fitted."""
    others = [row for row in range(len(C)) if row not in rows]
    D = torch.zeros_like(W)
    D[rows] = -W[rows]
    D[others] = torch.linalg.solve(C[others][:, others], C[others][:, rows] @ W[rows])
    return (G * (D.T @ C @ D)).sum().item()


@pytest.mark.parametrize(("count", "size"), [(6, 3), (BLOCK + 9, 1)])
def test_that_unit_goes_next_without_which_least_is_lost_after_the_fit(count: int, size: int) -> None:
    draw = torch.Generator().manual_seed(2)
    n, m = count * size, 4
    x = torch.randn(3 * n, n, generator=draw).double() @ torch.randn(n, n, generator=draw).double()
    C, W = x.T @ x, torch.randn(n, m, generator=draw).double()
    G = W.T @ W
    columns = torch.randperm(n, generator=draw).view(count, size)
    given = order(C, W, columns, G)
    gone: list[int] = []
    total = 0.0
    for place, unit in enumerate(given.units.tolist()):
        each = {
            other: lost(damped(C), W, damped(G), columns[[*gone, other]].flatten().tolist())
            for other in range(count)
            if other not in gone
        }
        assert unit == min(each, key=each.__getitem__)
        gone.append(unit)
        total = each[unit]
        assert given.lost[count - place - 1].item() == pytest.approx(total, rel=1e-6)
        assert given.left(count - place - 1).tolist() == sorted(set(range(count)) - set(gone))
    assert given.lost[count] == 0


def test_of_two_units_that_do_the_same_one_goes_first_and_one_stays_for_long() -> None:
    x = torch.randn(400, 8, generator=torch.Generator().manual_seed(0)).double()
    x[:, 5] = x[:, 2]
    W = torch.ones(8, 1).double()
    given = order(x.T @ x, W, torch.arange(8)[:, None], torch.ones(1, 1))
    assert given.units[0] in (2, 5)
    assert ({2, 5} - {int(given.units[0])}).pop() == given.units[-1]


def test_silent_layers_have_an_order_too() -> None:
    given = order(torch.zeros(6, 6), torch.zeros(6, 2), torch.arange(6).view(3, 2), torch.zeros(2, 2))
    assert sorted(given.units.tolist()) == [0, 1, 2]
    assert given.lost.isfinite().all()


def test_curvature_is_that_of_gradients_at_positions_that_are_no_padding() -> None:
    model, batches = lively("llama"), texts(2)
    paths = [layer.second for layer in feed_forwards(model, batches[0])]
    given = curvatures(model, paths, batches, own)
    outs: dict[str, Tensor] = {}
    for path in paths:
        model.get_submodule(path).register_forward_hook(lambda _, __, out, path=path: outs.__setitem__(path, out))
    expected = {path: torch.zeros(()) for path in paths}
    for batch in batches:
        slopes = torch.autograd.grad(own(model, batch), [outs[path] for path in paths])
        for path, slope in zip(paths, slopes, strict=True):
            rows = slope[batch["attention_mask"].bool()]
            expected[path] = expected[path] + rows.T @ rows
    count = sum(batch["attention_mask"].sum() for batch in batches)
    for path in paths:
        torch.testing.assert_close(given[path], expected[path] / count, rtol=1e-6, atol=1e-12)
