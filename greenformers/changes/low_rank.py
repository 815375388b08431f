"""Low rank: weights as products of two smaller matrices, W ~ D E. Winata 2020, arXiv:1910.13923 (LED).

The change covers linear layers, convolutions and embeddings of any network; see `greenformers.solve.factorise`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from greenformers.changes._contract import Change, Given, Need, option
from greenformers.changes._report import Report

if TYPE_CHECKING:
    from torch import nn

    from greenformers.solve.budget import Budget
    from greenformers.solve.result import LayerReport
    from greenformers.solve.stream import Stream

DATA_FREE, CALIBRATED = "svd", "loss"
"""The default solvers: without texts, and with texts."""

NOTHING = "no weight became low rank: within the budget, or to be faster, all of them stay dense"


@dataclass(frozen=True)
class LowRank(Change):
    """Products of two smaller matrices in place of weights, within a budget."""

    keep: float | None = option(None, "Share of the weights to keep, in (0, 1]; 0.5 by default.", "--keep")
    of: str = option(
        "parameters", "Cost that --keep is a share of: parameters, flops, or latency, which is measured.", "--of"
    )
    uniform: bool = option(
        False, "Keep the same share of every weight, not more where more would be lost.", "--uniform"
    )
    rank: int | None = option(None, "One rank for all weights, in place of --keep.", "--rank")
    energy: float | None = option(
        None, "Share of its squared singular values that every weight keeps, in place of --keep.", "--energy"
    )
    stable_rank: float | None = option(
        None, "Rank as a multiple of the stable rank of every weight, in place of --keep.", "--stable-rank"
    )
    solver: str | None = option(
        None,
        "How the factors are computed. From weights: svd, randomized, nmf, semi_nmf, random; with texts: activation, "
        "sequential, loss, sequential_loss. By default loss with texts, svd without.",
        "--solver",
    )
    select: tuple[str, ...] | None = option(
        None, "Weights to factorise: patterns of paths such as '*.query', or linear, experts, conv, embedding; by "
        "default all linear layers and experts.",
        "--select",
    )  # fmt: skip
    multiple: int | None = option(
        None, "Ranks are multiples of this number; by default 8, on a GPU 64; --rank is exact.", "--multiple"
    )
    only_if_faster: bool = option(
        False, "Leave weights dense whose factors are not faster, as measured.", "--only-if-faster"
    )

    order: ClassVar[int] = 30
    factorises: ClassVar[bool] = True
    share: ClassVar[str | None] = "keep"
    reads_weights: ClassVar[bool] = True
    from_disk: ClassVar[bool] = True
    by_block: ClassVar[bool] = True

    def __post_init__(self) -> None:
        from greenformers.lowrank.factorize import SOLVERS

        named = [name for name in ("keep", "rank", "energy", "stable_rank") if getattr(self, name) is not None]
        if len(named) > 1:
            raise ValueError(f"{' and '.join(named)} of low_rank exclude each other")
        if named and named != ["keep"] and (self.uniform or self.of != "parameters"):
            raise ValueError(f"{'uniform' if self.uniform else 'of'} of low_rank goes with keep, not with {named[0]}")
        if self.solver is not None and self.solver not in SOLVERS:
            raise ValueError(f"solver must be one of {', '.join(SOLVERS)}; got {self.solver!r}")
        if self.multiple is not None and self.multiple < 1:
            raise ValueError(f"multiple must be at least 1, got {self.multiple}")
        self.budget()

    def budget(self, solver: str | None = None) -> "Budget":
        """The budget of the options; a share of parameters is spent in the way that the solver allows.

        Raises:
            ValueError: A value is out of range.
        """
        from greenformers.lowrank.factorize import SPECTRAL
        from greenformers.solve.budget import Budget

        named = {"rank": self.rank, "energy": self.energy, "stable": self.stable_rank}
        for how, amount in named.items():
            if amount is not None:
                return Budget(amount, how)
        bare = self.of == "parameters" and solver is not None and solver not in SPECTRAL
        return Budget(0.5 if self.keep is None else self.keep, "uniform" if self.uniform or bare else "hull", self.of)

    @property
    def label(self) -> str:
        """The budget, as in "low rank 0.5" or "low rank r=64"."""
        budget = self.budget()
        said = {"rank": "r=", "energy": "energy ", "stable": "stable rank "}.get(budget.how, "")
        return f"low rank {said}{budget.amount:g}"

    @property
    def needs(self) -> frozenset[Need]:
        """Texts to calibrate with for solvers that use them, an example for costs other than parameters."""
        from greenformers.lowrank.factorize import CALIBRATED as LOOKING

        measured = self.of != "parameters" or self.only_if_faster
        calibrates: frozenset[Need] = frozenset({"calibration"} if self.solver in LOOKING else ())
        return calibrates | frozenset[Need]({"example"} if measured else ())

    @property
    def uses(self) -> frozenset[Need]:
        """The needs, and texts to calibrate with unless a solver is named that uses weights alone."""
        return self.needs | ({"calibration"} if self.solver is None else frozenset())

    @property
    def shares(self) -> bool:
        """Whether it looks at texts; of what is measured two processes would make two networks."""
        return "calibration" in self.uses and self.of != "latency" and not self.only_if_faster

    def check(self, model: "nn.Module", before: "Sequence[type[Change]]", given: Given) -> None:
        """Check also that the solver can spend the budget, and that there are weights to factorise."""
        from greenformers.solve.budget import check_possible
        from greenformers.solve.factorise import check_budget
        from greenformers.solve.units import pack, unpack
        from greenformers.solve.walk import sites

        super().check(model, before, given)
        solver = self.solver or (CALIBRATED if given.calibration else DATA_FREE)
        check_budget(self.budget(solver), solver)
        if given.part or any(change.factorises for change in before):  # which may leave other layers than there are now
            return
        unpacked = unpack(model)
        try:
            check_possible(sites(model, self.select), self.budget(solver), self.multiple)
        finally:
            pack(model, unpacked)

    def apply(self, model: "nn.Module", given: Given) -> Report:
        """Factorise the weights, see `greenformers.solve.factorise.factorise`.

        Raises:
            ValueError: The factorisation is refused, or no weight became low rank.
        """
        from greenformers.changes._coverage import coverage
        from greenformers.solve.census import census
        from greenformers.solve.factorise import factorise

        solver = self.solver or (CALIBRATED if given.calibration else DATA_FREE)
        held = census(model)
        done = factorise(
            model, self.budget(solver), solver=solver, select=self.select, calibration=given.calibration,
            original=given.original, loss=given.loss, example=given.example, multiple=self.multiple,
            only_if_faster=self.only_if_faster, memory=given.memory, seed=given.seed, progress=given.progress,
        )  # fmt: skip
        if not given.part and all(layer.rank is None for layer in done.layers):
            raise ValueError(NOTHING)
        by = solver if done.nearest is None else f"{solver}, which has no form for experts: {done.nearest} of those"
        return self.report_of(done.layers, by, coverage(held, _paths(done.layers), done.unreached))

    def report_of(self, layers: "Sequence[LayerReport]", solver: str, share: str) -> Report:
        """The report: what was done to each weight, and the share of the network that was covered."""
        from greenformers.changes._options import as_dict
        from greenformers.changes._units import reported

        before, after = (
            sum(layer.parameters_before for layer in layers),
            sum(layer.parameters_after for layer in layers),
        )
        summary = (
            f"{before:,} weights in {len(layers)} layers, {after:,} kept ({100 * after / before:.1f} %), "
            f"solver {solver}; they are {share}"
        )
        return Report(as_dict(self), summary, [reported(layer) for layer in layers])

    def in_block(self, part: "nn.Module") -> Self | None:
        """The same change, which then spends its budget within each block.

        Raises:
            ValueError: Something is to be measured, or the budget is of another cost than parameters.
        """
        from greenformers.changes._selection import selecting
        from greenformers.model.experts import as_modules
        from greenformers.solve.walk import sites

        if self.of != "parameters" or self.only_if_faster:
            which = "only_if_faster" if self.only_if_faster else f"a budget of {self.of}"
            raise ValueError(f"block by block, from disk, nothing is measured: {which} is not available")
        with as_modules(part):
            return selecting(self, lambda select: sites(part, select))

    @property
    def reads_original(self) -> bool:
        """Whether it looks at inputs: factors stand for what the network as it was computes."""
        from greenformers.lowrank.factorize import CALIBRATED as LOOKING

        return self.solver is None or self.solver in LOOKING

    @property
    def squares(self) -> int:
        """The sums over inputs before and after; or one of them, its eigenvectors, and what finding these takes."""
        return 4 if self.reads_original else 2

    def stream(self, model: "nn.Module", given: Given) -> "Stream":
        """The change applied weight by weight, by solvers that use weights alone; "randomized" by default."""
        from greenformers.solve.stream import Stream

        if self.only_if_faster:
            raise ValueError("from disk nothing is measured: only_if_faster is not available")
        solver = self.solver or "randomized"
        return Stream(
            model, self.budget(solver), solver=solver, select=self.select, multiple=self.multiple, seed=given.seed,
            progress=given.progress,
        )  # fmt: skip

    def streamed(self, stream: "Stream") -> Report:
        """The report of a stream that has been read to its end.

        Raises:
            ValueError: No weight became low rank.
        """
        from greenformers.changes._coverage import coverage

        if all(layer.rank is None for layer in stream.layers):
            raise ValueError(NOTHING)
        share = coverage(stream.held, _paths(stream.layers))
        return self.report_of(stream.layers, stream.solver, share)

    @classmethod
    def describe(cls, model: "nn.Module") -> Any:
        """The ranks by path, and groups of paths that share their factors."""
        from greenformers.changes._units import groups_of, ranks_of

        ranks = ranks_of(model)
        return {"ranks": ranks, "ties": groups_of(model)} if ranks else None

    @classmethod
    def place(cls, model: "nn.Module", description: Any) -> list[str]:
        """Put empty low-rank units at the paths of a description."""
        from greenformers.changes._units import checked, place

        return place(model, *checked(description))

    @classmethod
    def replaced(cls, model: "nn.Module") -> Iterable[str]:
        """Paths of the low-rank units."""
        from greenformers.changes._units import ranks_of

        return ranks_of(model)

    @classmethod
    def ties(cls, model: "nn.Module") -> Iterable[tuple[str, str]]:
        """Factors that units share."""
        from greenformers.changes._units import ties

        return ties(model)

    @classmethod
    def revert(cls, model: "nn.Module") -> int:
        """Replace every unit by a dense layer, with the product of its factors. The number of units."""
        from greenformers.solve.units import merged

        return merged(model)

    @classmethod
    def searched(cls, model: "nn.Module", *, length: int, causal: bool, heals: bool) -> Sequence[Self]:
        """Nine tenths of the weights, and so on down to three tenths."""
        return [cls(keep=tenths / 10) for tenths in range(9, 2, -1)]

    def products_left(self, model: "nn.Module") -> float:
        """The share of the weights that is kept: each is multiplied by a number of each input."""
        budget = self.budget()
        return budget.amount if budget.how in ("hull", "uniform") else 1.0


def _paths(layers: "Sequence[LayerReport]") -> list[str]:
    return [path for layer in layers for path in (layer.path, *layer.tied)]
