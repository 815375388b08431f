"""One budget for heads, neurons and ranks: the points it is spent on, and that it is kept; beside oracles."""

import copy
import math
from collections.abc import Callable, Mapping
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_fewer_heads import tiny_model
from test_neurons import texts
from torch import nn
from zoo import outputs

import greenformers
from greenformers.changes import Shrink
from greenformers.lowrank.rank import Point, hull
from greenformers.measure.flops import flops
from greenformers.solve import linear_time
from greenformers.solve.calibrate import covariances
from greenformers.solve.coupled import Coupled
from greenformers.solve.factorise import factorise
from greenformers.solve.feed_forward import feed_forwards
from greenformers.solve.heads import heads
from greenformers.solve.joint_points import joint_points
from greenformers.solve.linear_time import LinearTime
from greenformers.solve.loss import default
from greenformers.solve.rank_curves import rank_curves
from greenformers.solve.solve import solve
from greenformers.solve.unit_cost import UnitCost, cost_of
from greenformers.solve.walk import sites
from greenformers.solve.watch import trace


def test_points_are_the_best_of_all_ways_to_hold_a_layer() -> None:
    draw = torch.Generator().manual_seed(0)
    layer = Coupled("neurons", {"a": torch.zeros(4, 1), "b": torch.zeros(4, 1)}, "c", torch.zeros(4, 1), 1)

    def size(_: Coupled, path: str, left: int) -> tuple[int, int]:
        return (20, 3 * left) if path == "c" else (3 * left, 20)

    def matrix(of: Coupled, path: str, left: int, rank: int | None) -> float:
        m, n = size(of, path, left)
        return m * n if rank is None else rank * (m + n)

    cost = UnitCost(matrix, lambda _, left: 7.0 * left)
    units = [Point(left, cost(layer, left), (4 - left) ** 2 * 0.6) for left in range(1, 5)]
    ranks = {
        path: {rank: torch.rand((), generator=draw).item() / rank**2 for rank in range(1, 8)}
        for path in layer.paths[:2]
    }
    points = joint_points(layer, units, ranks, cost, size)
    ways = []
    for unit in units:
        m, n = size(layer, "a", unit.choice)
        offered = [(None, 0.0), *((rank, 0.0) for rank in range(1, 8) if rank * (m + n) < m * n)]
        for (a, _), (b, _) in product(offered, repeat=2):
            spent = matrix(layer, "a", unit.choice, a) + matrix(layer, "b", unit.choice, b) + 7.0 * unit.choice
            lost = unit.error + sum(ranks[path][rank] for path, rank in (("a", a), ("b", b)) if rank)
            ways.append(Point((unit.choice, a, b), spent + matrix(layer, "c", unit.choice, None), lost))
    expected = hull(ways)
    assert [point.cost for point in points] == [point.cost for point in expected]
    assert [point.error for point in points] == pytest.approx([point.error for point in expected])
    assert any(rank is not None for point in points for rank in point.choice.ranks.values())
    assert all(point.choice.ranks["c"] is None for point in points)


def test_what_a_rank_loses_is_measured() -> None:
    model, batches = tiny_model("bert"), texts(2)
    paths = [f"bert.encoder.layer.{place}.intermediate.dense" for place in range(2)]
    traced = trace(model, [site for site in sites(model, "linear") if site.path in paths], batches[0])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    offered = {path: [4, 8, 18] for path in paths}
    lost = rank_curves(model, traced, offered, batches)
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    seen = {site.path: at for site, at in covariances(model, traced, batches, loss=default(model, batches))}
    mask = batches[0]["attention_mask"].bool()

    def logits(other: nn.Module) -> list[torch.Tensor]:
        with torch.no_grad():
            given = [other(**batch).logits for batch in batches]
        return [each[mask] if each.shape[:2] == mask.shape else each for each in given]

    whole = logits(model)
    for path in paths:
        above = 0.0
        for rank in (18, 8, 4):
            changed = copy.deepcopy(model)
            layer: Any = changed.get_submodule(path)
            (site,) = (site for site in sites(changed, "linear") if site.path == path)
            solved = solve(site, 18, "loss", seen[path])
            with torch.no_grad():
                layer.weight.copy_(solved.decoder[0, :, :rank] @ solved.encoder[0, :rank])
                layer.bias += solved.shift(rank)
            moved = sum((now - was).square().sum().item() for now, was in zip(logits(changed), whole, strict=True))
            above = max(above, moved)
            assert lost[path][rank] == pytest.approx(above, rel=1e-6)
            assert above > 0


@pytest.mark.parametrize("of", ["flops", "parameters"])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_heads_neurons_and_ranks_share_a_budget(name: str, of: str) -> None:
    model, batches = tiny_model(name), texts(2)
    layers = [*heads(model, batches[0]), *feed_forwards(model, batches[0])]
    for path in (path for layer in layers for path in layer.paths):
        weight: Any = model.get_submodule(path).weight
        U, S, V = torch.linalg.svd(weight.detach(), full_matrices=False)
        weight.data = U * (S * 0.7 ** torch.arange(len(S))) @ V  # of which a rank leaves much, as of trained weights
    cost = cost_of(model, layers, of, batches[0])
    whole = sum(cost(layer, layer.count) for layer in layers)

    def counted() -> float:
        return (
            flops(lambda: outputs(model, batches[0])) if of == "flops" else sum(x.numel() for x in model.parameters())
        )

    before = counted()
    report = greenformers.compress(model, Shrink(0.6, of=of, multiple=2), calibration=batches)
    gone = before - counted()
    assert 0.4 * whole * (1 - 1e-9) <= gone < 0.5 * whole
    forms = [unit.form for unit in report.steps[0].report.units]
    assert any(form.startswith("rank ") for form in forms)
    assert any("neurons" in form or "heads" in form for form in forms)


def test_seconds_are_fitted_and_never_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = [(8, 16), (64, 16), (8, 128), (64, 128), (32, 32)]

    def timed(calls: Mapping[str, Callable[[], None]], **_: Any) -> dict[str, Any]:
        for call in calls.values():
            call()
        return {name: SimpleNamespace(median=seconds(*taken[int(name)])) for name in calls}

    def seconds(m: int, n: int) -> float:
        return 2.0 + 0.01 * m - 0.001 * n * falls + 0.003 * m * n

    monkeypatch.setattr(linear_time, "interleaved", timed)
    taken.sort()
    leading = [torch.Size([2, 3])]
    for falls in (0, 1):
        times = LinearTime(taken, torch.zeros(1))
        near = pytest.approx(seconds(40, 50), rel=1e-6 if not falls else 0.05)
        assert times(40, 50, leading) == near
        assert times(40, 51, leading) >= times(40, 50, leading)


def test_least_squares_without_negative_numbers() -> None:
    nnls = pytest.importorskip("scipy.optimize").nnls
    draw = torch.Generator().manual_seed(0)
    for _ in range(50):
        A, b = torch.randn(9, 4, generator=draw).double(), torch.randn(9, generator=draw).double()
        expected, _ = nnls(A.numpy(), b.numpy())
        torch.testing.assert_close(torch.tensor(linear_time._not_negative(A, b)).double(), torch.from_numpy(expected))


def test_ranks_can_be_named() -> None:
    model, batches = tiny_model("bert"), texts(2)
    path = "bert.encoder.layer.1.output.dense"
    done = factorise(model, {path: 5}, solver="sequential_loss", calibration=batches)
    assert [(layer.path, layer.rank) for layer in done.layers] == [(path, 5)]
    with pytest.raises(ValueError, match="leave select out"):
        factorise(tiny_model("bert"), {path: 5}, select="linear")
    with pytest.raises(ValueError, match="nowhere"):
        factorise(tiny_model("bert"), {"nowhere": 5})
    assert math.isfinite(outputs(model, batches[0])[0].sum().item())
