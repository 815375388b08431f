"""The ways to hold a layer with fewer units, and what is left of its weights dense or at a rank: costs and losses.

Losses of both kinds add up: what goes with a unit is not there to be missed by the factors of the rest, so that the sum
is too high rather than too low.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from greenformers.lowrank.rank import Point, hull, largest, together
from greenformers.solve.coupled import Coupled
from greenformers.solve.linear_time import Sizes
from greenformers.solve.unit_cost import UnitCost


@dataclass(frozen=True)
class Held:
    """A layer as it may be held.

    Attributes:
        count: Number of its units.
        ranks: Rank of each of its linear layers by path; None: dense.
    """

    count: int
    ranks: Mapping[str, int | None]


def joint_points(
    layer: Coupled,
    units: Sequence[Point[int]],
    ranks: Mapping[str, Mapping[int, float]],
    cost: UnitCost,
    size: Callable[[Coupled, str, int], Sizes],
) -> list[Point[Held]]:
    """The lower convex hull of what a layer costs and loses, with each number of units and each rank.

    Args:
        layer: The layer.
        units: What it loses with each number of units, dense.
        ranks: What it loses where a linear layer is held at a rank, by path; those without one stay dense.
        cost: Costs of its parts.
        size: Outputs and inputs of a linear layer with a number of units.
    """

    def ways(path: str, count: int) -> Iterator[Point[int | None]]:
        yield Point(None, cost.matrix(layer, path, count, None), 0.0)
        limit = largest(*size(layer, path, count))
        for rank, lost in ranks.get(path, {}).items():
            if rank <= limit:
                yield Point(rank, cost.matrix(layer, path, count, rank), lost)

    points: list[Point[Held]] = []
    for unit in units:
        rest = cost.rest(layer, unit.choice)
        for point in together([list(ways(path, unit.choice)) for path in layer.paths]):
            held = Held(unit.choice, dict(zip(layer.paths, point.choice, strict=True)))
            points.append(Point(held, point.cost + rest, point.error + unit.error))
    return hull(points)
