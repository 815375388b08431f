"""What the units of a network cost: parameters, FLOPs, or seconds as measured on this machine.

A unit is a row or a column of linear layers, which may hold what is left of it at a rank; heads also cost the products
of queries with keys and of attention with values.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from greenformers.lowrank.rank import largest
from greenformers.measure.latency import interleaved
from greenformers.solve.coupled import Coupled
from greenformers.solve.linear_time import LinearTime, Sizes
from greenformers.solve.walk import sites
from greenformers.solve.watch import Batch, trace

MEASURED = 8
"""Numbers of heads of a layer whose attention is timed; between them time is linear, as closely as a budget needs."""

Shapes = Mapping[str, Sequence[torch.Size]]
"""Shapes of the inputs of layers by path, one for each call."""


@dataclass(frozen=True)
class UnitCost:
    """Costs in the units of a budget.

    Attributes:
        matrix: Cost of the linear layer at a path, with a number of the units of its group, at a rank; None: dense.
        rest: Cost of what has no weights, with a number of units.
    """

    matrix: Callable[[Coupled, str, int, int | None], float]
    rest: Callable[[Coupled, int], float]

    def __call__(self, layer: Coupled, left: int) -> float:
        """Cost of all of it with a number of units, dense."""
        return sum(self.matrix(layer, path, left, None) for path in layer.paths) + self.rest(layer, left)


def cost_of(model: nn.Module, layers: Sequence[Coupled], of: str, example: Batch) -> UnitCost:
    """The cost of each linear layer around units, and of the rest.

    Args:
        model: The network.
        layers: The layers whose units may go.
        of: "units", "parameters", "flops" or "latency".
        example: A batch, for FLOPs and latency.
    """
    if of == "units":
        return UnitCost(lambda *_: 0.0, lambda _, left: float(left))
    if of == "parameters":

        def weights(layer: Coupled, path: str, left: int, rank: int | None) -> float:
            biased = path != layer.second and getattr(model.get_submodule(path), "bias", None) is not None
            m, n = sizes(model, layer, path, left)
            return weights_of(m, n, rank) + m * biased

        return UnitCost(weights, lambda *_: 0.0)
    linear = [site for site in sites(model, "linear") if any(site.path in layer.paths for layer in layers)]
    shapes = trace(model, linear, example).shapes
    if of == "flops":

        def flops(layer: Coupled, path: str, left: int, rank: int | None) -> float:
            positions = sum(shape[:-1].numel() for shape in shapes[path])
            return 2 * positions * weights_of(*sizes(model, layer, path, left), rank)

        return UnitCost(flops, lambda layer, left: _products(layer, left, shapes))
    weight = model.get_submodule(layers[0].second).weight
    assert isinstance(weight, Tensor)
    times = LinearTime(_measured(model, layers), weight)

    def seconds(layer: Coupled, path: str, left: int, rank: int | None) -> float:
        m, n = sizes(model, layer, path, left)
        leading = [shape[:-1] for shape in shapes[path]]
        parts = [(m, n)] if rank is None else [(rank, n), (m, rank)]
        return sum(times(outputs, inputs, leading) for outputs, inputs in parts)

    return UnitCost(seconds, _AttentionTime(shapes, weight))


def sizes(model: nn.Module, layer: Coupled, path: str, left: int) -> Sizes:
    """Outputs m and inputs n of a linear layer around units of which so many are left."""
    (site,) = sites(nn.ModuleList([model.get_submodule(path)]), "linear")
    if path == layer.second:
        return site.m, left * layer.columns.shape[1]
    return left * layer.first[path].shape[1], site.n


def weights_of(m: int, n: int, rank: int | None) -> int:
    """Weights of an m x n matrix, dense or as two factors."""
    return m * n if rank is None else rank * (m + n)


def _products(layer: Coupled, left: int, shapes: Shapes) -> float:
    if layer.kind != "heads":
        return 0.0
    width = left * layer.columns.shape[1]
    return sum(2 * 2.0 * batch * N * M * width for batch, N, M in _lengths(layer, shapes))


def _lengths(layer: Coupled, shapes: Shapes) -> list[tuple[int, int, int]]:
    """Texts, queries and keys of each call: keys are as many as inputs of the longest projection."""
    calls = zip(shapes[layer.second], *(shapes[path] for path in layer.first), strict=True)
    return [(out[0], out[1], max(x[1] for x in given)) for out, *given in calls]


def _measured(model: nn.Module, layers: Sequence[Coupled]) -> list[Sizes]:
    """Sizes that linear layers have with fewer units, and that their factors have."""
    measured = []
    for layer in layers:
        for path in layer.paths:
            for part in (8, 4, 2, 1):
                m, n = sizes(model, layer, path, -(-layer.count // part))
                rank = max(1, largest(m, n) // 2)
                measured += [(m, n), (rank, n), (m, rank)]
    return measured


class _AttentionTime:
    """Seconds of attention with a number of the heads of a layer: interpolated between measured ones."""

    def __init__(self, shapes: Shapes, weight: Tensor) -> None:
        self.shapes, self.weight = shapes, weight
        self.times: dict[object, dict[int, float]] = {}

    def __call__(self, layer: Coupled, left: int) -> float:
        if layer.kind != "heads":
            return 0.0
        key = (layer.columns.shape, *_lengths(layer, self.shapes))
        if key not in self.times:
            self.times[key] = self._timed(layer)
        times = self.times[key]
        below, above = next((a, b) for a, b in pairwise(sorted(times)) if a <= left <= b)
        share = (left - below) / (above - below)
        return times[below] * (1 - share) + times[above] * share

    def _timed(self, layer: Coupled) -> dict[int, float]:
        step = max(1, layer.count // MEASURED)
        tried = sorted({*range(step, layer.count + 1, step), layer.count})
        calls = {str(left): self._run(layer, left * layer.columns.shape[1]) for left in tried}
        timings = interleaved(calls, repeats=7, warmup=2, min_time=0.1, device=self.weight.device)
        # Fewer heads never take longer; where they seem to, the difference is noise.
        least = list(accumulate((timings[str(left)].median for left in reversed(tried)), min))
        return {0: 0.0} | dict(zip(tried, reversed(least), strict=True))

    def _run(self, layer: Coupled, width: int) -> Callable[[], None]:
        # Of any head dimension attention costs what its width does; 64 is the usual one.
        D = next(size for size in (64, 32, 16, 8, 4, 2, 1) if width % size == 0)
        attended = []
        for batch, N, M in _lengths(layer, self.shapes):
            q, k = (torch.randn(batch, width // D, length, D).to(self.weight) for length in (N, M))
            attended.append((q, k, k))

        def run() -> None:
            with torch.inference_mode():
                for qkv in attended:
                    F.scaled_dot_product_attention(*qkv)

        return run
