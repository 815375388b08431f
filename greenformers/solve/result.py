"""What a compression did: per map and in total."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from greenformers.solve.solve import Solved
from greenformers.solve.walk import Site


@dataclass(frozen=True)
class LayerReport:
    """One map.

    Attributes:
        path: where it stands; `tied` are further places of the same weight.
        shape: (groups, m, n) of its matrices.
        rank: None where it stayed dense.
        parameters_before, parameters_after: of its weight, without the bias.
        predicted: relative error, from the spectrum: of the weight for data-free solvers, of its outputs on the
            calibration data for the others (of its share of the loss for `loss`). None for solvers without a spectrum.
        achieved: the same error of the factors as stored, in the network's dtype.
        itemsize: bytes of one entry.
    """

    path: str
    tied: tuple[str, ...]
    shape: tuple[int, int, int]
    rank: int | None
    parameters_before: int
    parameters_after: int
    predicted: float | None
    achieved: float
    itemsize: int = 4

    @classmethod
    def of(cls, site: Site, part: Solved | None, rank: int | None, itemsize: int) -> Self:
        """Of a site: its factors at a rank, or None for both where it stays dense."""
        predicted, achieved = (
            (0.0, 0.0) if part is None or rank is None else (part.predicted(rank), part.achieved(rank))
        )
        shape = (site.groups, site.m, site.n)
        after = site.parameters(rank)
        return cls(site.path, site.paths[1:], shape, rank, site.dense, after, predicted, achieved, itemsize)


@dataclass(frozen=True)
class Factorisation:
    """What `factorise` did.

    Attributes:
        solver: that made the factors.
        budget: as given.
        layers: every selected map.
        model_before, model_after: parameters of the whole network.
        unreached: paths of what stayed dense because the calibration data does not reach it.
        nearest: the solver that factorised experts, where `solver` has no form for them.
    """

    solver: str
    budget: dict[str, Any]
    layers: Sequence[LayerReport]
    model_before: int
    model_after: int
    unreached: Sequence[str] = ()
    nearest: str | None = None

    @property
    def before(self) -> int:
        """Weights of the selected maps, dense."""
        return sum(layer.parameters_before for layer in self.layers)

    @property
    def after(self) -> int:
        """Weights of the selected maps as they are now."""
        return sum(layer.parameters_after for layer in self.layers)

    @property
    def kept(self) -> float:
        """Share of the weights of the selected maps."""
        return self.after / self.before

    def as_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self) | {"kept": self.kept}

    def markdown(self) -> str:
        """A table, one row a map."""
        lines = [
            f"{self.before:,} weights in {len(self.layers)} maps, {self.after:,} kept ({100 * self.kept:.1f} %); "
            f"whole network {self.model_before:,} -> {self.model_after:,}. Solver `{self.solver}`.",
            "",
            "| map | m x n | rank | weights | kept | predicted error | achieved |",
            "|---|---|---:|---:|---:|---:|---:|",
        ]
        for layer in self.layers:
            g, m, n = layer.shape
            size = f"{m} x {n}" if g == 1 else f"{g} x {m} x {n}"
            predicted = "-" if layer.predicted is None else f"{layer.predicted:.4f}"
            name = f"`{layer.path}`" + "".join(f" = `{path}`" for path in layer.tied)
            rank = "dense" if layer.rank is None else layer.rank
            kept = 100 * layer.parameters_after / layer.parameters_before
            lines.append(
                f"| {name} | {size} | {rank} | {layer.parameters_after:,} | {kept:.1f} % | {predicted} "
                f"| {layer.achieved:.4f} |"
            )
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.markdown()
