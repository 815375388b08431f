"""Which rank for which layer: rules that look at one layer, and budgets spent over all of them.

A budget is spent where it buys most. Every layer offers points (cost, error): one a rank, and staying dense, which
makes no error. On the lower convex hull of its points, each step to the next has a slope, error saved per unit of
cost; the steepest steps of all layers are taken until the budget is spent. That is the optimum over all budgets that
fall between two steps, and never more than one step away from it elsewhere (Lagrange; Shoham & Gersho 1988).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

MULTIPLE = {"cpu": 8, "cuda": 64}
"""Ranks are multiples of this: vector registers of a CPU, tiles of a GPU's matrix units."""


def largest(m: int, n: int, limit: int | None = None) -> int:
    """The largest rank at which r (m + n) < m n: above it, two factors are larger than the dense weight.

    Args:
        m: rows of the weight.
        n: columns of it.
        limit: no more than this either; by default min(m, n).
    """
    found = (m * n - 1) // (m + n)
    return min(found, m, n) if limit is None else min(found, limit)


def rounded(rank: float, multiple: int, limit: int) -> int | None:
    """The nearest multiple, at least one, that is not over the limit; None where there is none: stay dense.

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
        ValueError: share outside (0, 1].
    """
    if not 0 < share <= 1:
        raise ValueError(f"the share of energy kept must be in (0, 1], got {share}")
    total = energies.cumsum(0)
    # A hair less: rounding must not ask for one component more.
    return int((total < share * total[-1] * (1 - 1e-12)).sum()) + 1


def stable_rank(energies: Tensor) -> float:
    """|W|_F^2 / s_1^2: how many components as large as the first would hold the energy. Rudelson & Vershynin 2007."""
    return (energies.sum() / energies[0].clamp_min(1e-300)).item()


@dataclass(frozen=True)
class Point:
    """One way to keep a layer.

    Attributes:
        rank: None for dense.
        cost: in units of the budget: parameters, FLOPs or seconds.
        error: squared, summed over outputs; of the dense layer 0.
    """

    rank: int | None
    cost: float
    error: float


def hull(points: Sequence[Point]) -> list[Point]:
    """The lower convex hull from the cheapest point on: cost rises, error falls, by less and less a unit of cost."""
    ordered = sorted(points, key=lambda point: (point.cost, point.error))
    found: list[Point] = []
    for point in ordered:
        if found and point.error >= found[-1].error:
            continue
        while len(found) >= 2 and _slope(found[-2], found[-1]) <= _slope(found[-2], point):
            found.pop()
        found.append(point)
    return found


def _slope(a: Point, b: Point) -> float:
    """Error saved per unit of cost."""
    return (a.error - b.error) / (b.cost - a.cost)


def spend(layers: Sequence[Sequence[Point]], budget: float) -> list[Point]:
    """One point of each layer, of least total error within the budget.

    Raises:
        ValueError: not even the cheapest point of every layer fits the budget.
    """
    hulls = [hull(points) for points in layers]
    place = [0] * len(hulls)
    spent = sum(points[0].cost for points in hulls)
    if spent > budget * (1 + 1e-9):
        dearest = sum(max(point.cost for point in points) for points in layers)
        raise ValueError(f"the budget must be at least {spent / dearest:.3f} of the dense layers', their lowest ranks")
    steps = [
        (_slope(a, b), index, position, b.cost - a.cost)
        for index, points in enumerate(hulls)
        for position, (a, b) in enumerate(pairwise(points), 1)
    ]
    stopped = set()
    for _, index, position, cost in sorted(steps, key=lambda step: (-step[0], step[1], step[2])):
        # Slopes fall along a hull, so a layer's steps come in order. A step that does not fit ends its layer's climb:
        # later ones of other layers may still fit.
        if index in stopped or spent + cost > budget * (1 + 1e-9):
            stopped.add(index)
            continue
        place[index], spent = position, spent + cost
    return [points[at] for points, at in zip(hulls, place, strict=True)]
