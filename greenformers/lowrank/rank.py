"""Which rank for which layer: rules that look at one layer, and budgets spent over all of them.

A budget is spent where it buys most. Every layer offers points (cost, error): one a rank, and staying dense, which
makes no error. On the lower convex hull of its points, each step to the next has a slope, error saved per unit of
cost; the steepest steps of all layers are taken until the budget is spent. That is the optimum over all budgets that
end at a step, and at most one step's saving away from it elsewhere (Lagrange; Shoham & Gersho 1988).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

from torch import Tensor

MULTIPLE = {"cpu": 8, "cuda": 64}
"""Ranks are multiples of this: vector registers of a CPU, tiles of a GPU's matrix units."""


def largest(m: int, n: int, limit: int | None = None) -> int:
    """The largest rank at which r (m + n) < m n: above it, two factors are larger than the dense weight.

    Args:
        m: Number of rows of the weight.
        n: Number of columns of the weight.
        limit: Upper bound of the rank; by default min(m, n).
    """
    rank = (m * n - 1) // (m + n)
    return min(rank, m, n) if limit is None else min(rank, limit)


def rounded(rank: float, multiple: int, limit: int) -> int | None:
    """The multiple nearest to a rank, at least one multiple and not over the limit; None: the layer stays dense.

    A layer too small for one multiple gets the rank itself.
    """
    if limit < 1:
        return None
    if limit < multiple:
        return min(max(round(rank), 1), limit)
    nearest = max(round(rank / multiple), 1) * multiple
    return nearest if nearest <= limit else limit // multiple * multiple


def kept_energy(energies: Tensor, share: float) -> int:
    """The smallest rank that keeps this share of the sum of squared singular values.

    Raises:
        ValueError: The share is outside (0, 1].
    """
    if not 0 < share <= 1:
        raise ValueError(f"the share of energy kept must be in (0, 1], got {share}")
    total = energies.cumsum(0)
    # Slightly less than the share: rounding must not ask for one more component.
    return int((total < share * total[-1] * (1 - 1e-12)).sum()) + 1


def stable_rank(energies: Tensor) -> float:
    """|W|_F^2 / s_1^2: how many components as large as the first would hold the energy. Rudelson & Vershynin 2007."""
    return (energies.sum() / energies[0].clamp_min(1e-300)).item()


T = TypeVar("T")


@dataclass(frozen=True)
class Point(Generic[T]):
    """One way to hold a layer: at a rank or dense, or with fewer units.

    Attributes:
        choice: Rank of the factors, None for dense; or what else tells this way from others.
        cost: Cost in units of the budget: parameters, FLOPs or seconds.
        error: Squared error summed over outputs; 0 for the layer as it is.
    """

    choice: T
    cost: float
    error: float


def hull(points: Sequence[Point[T]]) -> list[Point[T]]:
    """The lower convex hull from the cheapest point on: cost rises, error falls, by less and less a unit of cost."""
    ordered = sorted(points, key=lambda point: (point.cost, point.error))
    corners: list[Point[T]] = []
    for point in ordered:
        if corners and point.error >= corners[-1].error:
            continue
        while len(corners) >= 2 and _slope(corners[-2], corners[-1]) <= _slope(corners[-2], point):
            corners.pop()
        corners.append(point)
    return corners


def _slope(a: Point[T], b: Point[T]) -> float:
    """Error saved per unit of cost."""
    return (a.error - b.error) / (b.cost - a.cost)


def spend(layers: Sequence[Sequence[Point[T]]], budget: float) -> list[Point[T]]:
    """One point for each layer, with the least total error within the budget.

    Raises:
        ValueError: The cheapest points of all layers together are over the budget.
    """
    budget *= 1 + 1e-12  # sums of costs are rounded
    hulls = [hull(points) for points in layers]
    chosen = [points[0] for points in hulls]
    left = budget - sum(point.cost for point in chosen)
    if left < 0:
        dearest = sum(max(point.cost for point in points) for points in layers)
        lowest = (budget - left) / dearest
        raise ValueError(f"the budget must be at least {lowest:.3f} of the dense layers', their lowest ranks")
    stopped = set()
    for index, point in _steps(hulls):
        cost = point.cost - chosen[index].cost
        # A step that does not fit ends its layer's climb; steps of other layers may still fit.
        if index in stopped or cost > left:
            stopped.add(index)
            continue
        chosen[index], left = point, left - cost
    return _filled(layers, chosen, left)


def _steps(hulls: Sequence[Sequence[Point[T]]]) -> list[tuple[int, Point[T]]]:
    """The steps along hulls, the steepest first: the number of the hull, and the point that is reached."""
    steps = []
    for index, points in enumerate(hulls):
        slope = float("inf")
        for a, b in pairwise(points):
            slope = min(slope, _slope(a, b))  # they fall along a hull; rounding must not change their order
            steps.append((slope, index, b))
    return [(index, point) for _, index, point in sorted(steps, key=lambda step: -step[0])]


def together(parts: Sequence[Sequence[Point[T]]]) -> list[Point[tuple[T, ...]]]:
    """The lower convex hull of what parts cost and lose together: of every budget the best point of each part."""
    hulls = [hull(points) for points in parts]
    chosen = [points[0] for points in hulls]

    def total() -> Point[tuple[T, ...]]:
        cost, error = sum(point.cost for point in chosen), sum(point.error for point in chosen)
        return Point(tuple(point.choice for point in chosen), cost, error)

    corners = [total()]
    for index, point in _steps(hulls):
        chosen[index] = point
        corners.append(total())
    return corners


def _filled(layers: Sequence[Sequence[Point[T]]], chosen: list[Point[T]], left: float) -> list[Point[T]]:
    """Spend the rest of the budget on points off the hulls, the largest saving first: mostly ranks near dense."""

    def best(index: int) -> Point[T]:
        current = chosen[index]
        return min(
            (point for point in layers[index] if point.cost - current.cost <= left), key=lambda point: point.error
        )

    for index in sorted(range(len(layers)), key=lambda index: best(index).error - chosen[index].error):
        point = best(index)
        if point.error < chosen[index].error:
            left -= point.cost - chosen[index].cost
            chosen[index] = point
    return chosen
