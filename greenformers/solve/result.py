"""What a factorisation did: per weight and in total."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from greenformers.solve.solve import Solved
from greenformers.solve.walk import Site


@dataclass(frozen=True)
class LayerReport:
    """One weight.

    Attributes:
        path: Path of its layer; `tied` are the paths of further layers with the same weight.
        shape: Number and size (groups, m, n) of its matrices.
        rank: Its rank, None where it stayed dense.
        parameters_before, parameters_after: Number of its parameters, without the bias.
        predicted: Relative error by the spectrum: of the weight for data-free solvers, of the outputs on the
            calibration data for the others (of the share of the loss for `loss`). None for solvers without a spectrum.
        achieved: The same relative error, of the factors as stored in the network's dtype.
        itemsize: Bytes of one entry.
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
        """The report of a site with its factors at a rank; `part` and `rank` are None where it stays dense."""
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
        solver: The solver that made the factors.
        budget: The budget as it was given.
        layers: Every selected weight.
        model_before, model_after: Number of parameters of the whole network.
        unreached: Paths of layers that stayed dense because the calibration data does not reach them.
        nearest: The solver that factorised experts, where `solver` has no form for them.
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
        """Number of parameters of the selected weights before, dense."""
        return sum(layer.parameters_before for layer in self.layers)

    @property
    def after(self) -> int:
        """Number of parameters of the selected weights as they are now."""
        return sum(layer.parameters_after for layer in self.layers)

    @property
    def parameter_share(self) -> float:
        """Parameters of the selected weights as they are now, as a share of those before."""
        return self.after / self.before

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON takes it."""
        return asdict(self) | {"kept": self.parameter_share}

    def markdown(self) -> str:
        """A table with one row for each weight."""
        lines = [
            f"{self.before:,} weights in {len(self.layers)} layers, {self.after:,} kept "
            f"({100 * self.parameter_share:.1f} %); whole network {self.model_before:,} -> {self.model_after:,}. "
            f"Solver `{self.solver}`.",
            "",
            "| layer | m x n | rank | weights | kept | predicted error | achieved |",
            "|---|---|---:|---:|---:|---:|---:|",
        ]
        for layer in self.layers:
            g, m, n = layer.shape
            size = f"{m} x {n}" if g == 1 else f"{g} x {m} x {n}"
            predicted = "-" if layer.predicted is None else f"{layer.predicted:.4f}"
            name = f"`{layer.path}`" + "".join(f" = `{path}`" for path in layer.tied)
            rank = "dense" if layer.rank is None else layer.rank
            percent = 100 * layer.parameters_after / layer.parameters_before
            lines.append(
                f"| {name} | {size} | {rank} | {layer.parameters_after:,} | {percent:.1f} % | {predicted} "
                f"| {layer.achieved:.4f} |"
            )
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.markdown()
