"""Fewer heads and neurons, and lower ranks of what is left of weights, on one budget, without training.

Heads and neurons go as in `prune` (Kwon 2022, arXiv:2204.09656); weights become products of two smaller ones as in
`low_rank`. What each number of units and each rank loses is measured, one layer at a time, and the budget is spent
where it saves most, whatever the kind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from greenformers.changes._contract import Given, option
from greenformers.changes._report import Report
from greenformers.changes.prune import Prune

if TYPE_CHECKING:
    from torch import nn

    from greenformers.solve.coupled import Coupled

SOLVER = "sequential_loss"
"""The solver of the factors: what is left makes up for what layers before it lose."""


@dataclass(frozen=True)
class Shrink(Prune):
    """Fewer heads and neurons, and lower ranks, on one budget: of FLOPs, parameters, or seconds as measured."""

    keep: float = option(
        0.5, "Share of the cost of all heads, neurons and their weights to keep, in (0, 1).", "--shrink"
    )
    of: str = option("flops", "Cost: flops, parameters, or latency, which is measured.", "--shrink-of")

    order: ClassVar[int] = 7
    factorises: ClassVar[bool] = True
    by_block: ClassVar[bool] = False

    def apply(self, model: "nn.Module", given: Given) -> Report:
        """Take units out of the network's layers, and put factors in the place of weights.

        Raises:
            ValueError: The network has no such layers, its units are read elsewhere too, or there are too few.
        """
        from functools import partial

        from greenformers.changes._units import reported
        from greenformers.lowrank.rank import spend
        from greenformers.solve.factorise import factorise
        from greenformers.solve.joint_points import joint_points
        from greenformers.solve.unit_cost import sizes

        batches: Any = given.calibration
        layers, cost, choice, units = self._measured(model, given)
        ranks = self._ranks(model, layers, given)
        points = [
            joint_points(layer, row, ranks, cost, partial(sizes, model))
            for layer, row in zip(layers, units, strict=True)
        ]
        spent = [point.choice for point in spend(points, self.keep * sum(row[-1].cost for row in units))]
        counts = {layer.second: held.count for layer, held in zip(layers, spent, strict=True)}
        lower = {path: rank for held in spent for path, rank in held.ranks.items() if rank is not None}
        with self._without(model, layers, counts, choice, given) as (report, stay):
            if not lower:
                stay()
                return report
            done = factorise(
                model, lower, solver=SOLVER, calibration=batches, loss=given.loss, memory=given.memory,
                seed=given.seed, progress=given.progress,
            )  # fmt: skip
            stay()
        said = (
            f"{report.summary}; {len(lower)} of their {sum(len(layer.paths) for layer in layers)} weights are factors"
        )
        return replace(report, summary=said, units=[*report.units, *map(reported, done.layers)])

    def in_block(self, part: "nn.Module") -> Self | None:
        """Raise: units and ranks share one budget over all layers.

        Raises:
            ValueError: Always.
        """
        raise ValueError(f"{self.name()} shares one budget among all layers: it cannot be applied block by block")

    def _ranks(self, model: "nn.Module", layers: "list[Coupled]", given: Given) -> Mapping[str, Mapping[int, float]]:
        """What is lost at each rank of the weights around units, by path; those that others share stay dense."""
        from greenformers.lowrank.rank import MULTIPLE
        from greenformers.solve.budget import candidates
        from greenformers.solve.rank_curves import rank_curves
        from greenformers.solve.walk import sites
        from greenformers.solve.watch import trace

        batches: Any = given.calibration
        paths = {path for layer in layers for path in layer.paths}
        alone = [site for site in sites(model, "linear") if len(site.paths) == 1 and site.path in paths]
        offered = {
            site.path: ranks
            for site in alone
            if (ranks := candidates(site, MULTIPLE.get(site.matrices().device.type, 8)))
        }
        if not offered:
            return {}
        traced = trace(model, [site for site in alone if site.path in offered], batches[0])
        return rank_curves(
            model, traced, offered, batches, loss=given.loss, memory=given.memory, seed=given.seed,
            progress=lambda share: given.progress("measuring ranks", share),
        )  # fmt: skip

    @classmethod
    def searched(cls, model: "nn.Module", *, length: int, causal: bool, heals: bool) -> "Sequence[Shrink]":
        """None: fewer units and lower ranks are changes of their own, which a search combines."""
        return []
