"""How much of a network is kept, and how ranks follow from it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from greenformers.lowrank.rank import MULTIPLE, Point, kept_energy, largest, rounded, spend, stable_rank
from greenformers.solve.walk import Site

HOW = ("hull", "uniform", "rank", "energy", "stable")
OF = ("parameters", "flops", "latency")

Cost = Callable[[Site, int | None], float]
"""Cost of a site at a rank, or dense (None), in the units of the budget."""


@dataclass(frozen=True)
class Budget:
    """What is kept of the selected weights.

    Attributes:
        amount: The share, rank or multiple whose meaning `how` gives.
        how: "hull": `amount` is the share of the cost of all weights together, spent where it saves most error.
            "uniform": it is the share that each weight keeps of its parameters. "rank": it is one rank for all.
            "energy": each weight gets the smallest rank that keeps this share of its squared singular values.
            "stable": each weight gets `amount` times its stable rank |W|^2 / s_1^2.
        of: The cost that "hull" spends: parameters, flops or latency; latency is measured.

    Raises:
        ValueError: A value out of range.
    """

    amount: float
    how: str = "hull"
    of: str = "parameters"

    def __post_init__(self) -> None:
        if self.how not in HOW:
            raise ValueError(f"a budget is one of {', '.join(HOW)}; got {self.how!r}")
        if self.of not in OF:
            raise ValueError(f"a budget is spent of {', '.join(OF)}; got {self.of!r}")
        if self.of != "parameters" and self.how != "hull":
            raise ValueError(f"a budget of {self.of} is a share of all weights together, not {self.how!r}")
        if self.how == "rank" and not (self.amount >= 1 and float(self.amount).is_integer()):
            raise ValueError(f"a rank must be a whole number from 1 on, got {self.amount}")
        if self.how == "stable" and not self.amount > 0:
            raise ValueError(f"the multiple of the stable rank must be positive, got {self.amount}")
        if self.how in ("hull", "uniform", "energy") and not 0 < self.amount <= 1:
            raise ValueError(f"the share to keep must be in (0, 1], got {self.amount}")

    @property
    def needs_spectrum(self) -> bool:
        """True where ranks follow from singular values."""
        return self.how in ("hull", "energy", "stable")


@dataclass(frozen=True)
class Layer:
    """A site and its spectrum.

    Attributes:
        site: The weight.
        energies: Squared singular values in falling order, summed over the groups of a grouped convolution. Where
            there are fewer values than ranks, the rest are zero.
    """

    site: Site
    energies: Tensor | None


def candidates(site: Site, multiple: int) -> list[int]:
    """The ranks that a site may get: the multiples that make it smaller; without any, the largest rank that does."""
    limit = largest(site.m, site.n)
    return list(range(multiple, limit + 1, multiple)) or ([limit] if limit else [])


def usual_multiple(selected: Sequence[Site], budget: Budget) -> int:
    """The number of which ranks are multiples, unless another is given."""
    return 1 if budget.how == "rank" else MULTIPLE.get(selected[0].matrices().device.type, 8)


def check_possible(selected: Sequence[Site], budget: Budget, multiple: int | None) -> None:
    """Check what follows from the shapes of weights alone, whichever of them texts reach.

    Raises:
        ValueError: The lowest ranks are over a budget of parameters, or one rank is beyond all weights.
    """
    limits = {site.path: largest(site.m, site.n) for site in selected}
    if budget.how == "rank" and budget.amount > max(limits.values()):
        raise ValueError(
            f"the rank must be at most {max(limits.values())}, the largest that makes a weight smaller; "
            f"got {budget.amount:g}"
        )
    if budget.how == "hull" and budget.of == "parameters":
        by = multiple or usual_multiple(selected, budget)
        lowest = [site.parameters(next(iter(candidates(site, by)), None)) for site in selected]
        dense = [site.parameters(None) for site in selected]
        if budget.amount < min(low / whole for low, whole in zip(lowest, dense, strict=True)):
            raise ValueError(
                f"the budget must be at least {sum(lowest) / sum(dense):.3f} of the dense layers', their lowest ranks; "
                f"got {budget.amount}"
            )


def ranks(layers: Sequence[Layer], budget: Budget, cost: Cost, multiple: int) -> list[int | None]:
    """The rank of each layer, None for one that stays dense.

    Args:
        layers: All sites, with their spectra where the budget needs them.
        budget: What is kept.
        cost: Cost of a site at a rank.
        multiple: Number of which all ranks are multiples.

    Raises:
        ValueError: The budget cannot be met.
    """
    if budget.how == "hull":
        return _spent(layers, budget.amount, cost, multiple)
    layer_ranks = []
    for layer in layers:
        limit = largest(layer.site.m, layer.site.n)
        target = _target_rank(layer, budget)
        if budget.how == "energy" and limit >= multiple:  # a share that is kept, and no less of it
            target = -(-target // multiple) * multiple
        layer_ranks.append(None if target > limit else rounded(target, multiple, limit))
    return layer_ranks


def _target_rank(layer: Layer, budget: Budget) -> float:
    site = layer.site
    if budget.how == "rank":
        return budget.amount
    if budget.how == "uniform":
        if budget.amount == 1:
            return float("inf")
        return budget.amount * site.m * site.n / (site.m + site.n)
    assert layer.energies is not None
    if budget.how == "energy":
        return kept_energy(layer.energies, budget.amount)
    return budget.amount * stable_rank(layer.energies)


def _spent(layers: Sequence[Layer], share: float, cost: Cost, multiple: int) -> list[int | None]:
    points: list[list[Point[int | None]]] = []
    for layer in layers:
        assert layer.energies is not None
        dropped = layer.energies.sum() - layer.energies.cumsum(0)
        offered: list[Point[int | None]] = [
            Point(rank, cost(layer.site, rank), max(dropped[min(rank, len(dropped)) - 1].item(), 0.0))
            for rank in candidates(layer.site, multiple)
        ]
        points.append([*offered, Point[int | None](None, cost(layer.site, None), 0.0)])
    everything = sum(row[-1].cost for row in points)
    return [point.choice for point in spend(points, share * everything)]
