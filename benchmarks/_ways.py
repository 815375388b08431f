"""Low rank beside dense networks as small, all trained alike: what the tables on images, texts and speech share.

The networks: dense; low-rank; and the controls of low rank, dense networks of smaller width with as many parameters
(narrow) or as many FLOPs (narrow_flops). Each is trained by Muon and by AdamW, and low rank once more by Muon with
dense layers in the first quarter of the steps: with seed 0 at every rate of the grid, and with the other seeds at the
rate whose score on the validation set is best. The grid of Muon's rates is five times that of AdamW's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from _harness import Option, Run

from greenformers.train.schedule import MUON
from greenformers.train.settings import Training

S = TypeVar("S", bound=Training)

DENSE = "transformer"
TIMES = (0.5, 1.0, 2.0)
"""The grid of learning rates, in times of a benchmark's own."""
SEEDS = Option("--seeds", "trainings of each way, all but the first at its best rate", int, 1)
OPTIONS = (
    SEEDS,
    Option("--rates", f"learning rates to try, in times of the usual one; by default {','.join(map(str, TIMES))}"),
    Option("--ways", "those to be trained beside the dense network, with commas between; by default all"),
)


@dataclass(frozen=True)
class Way:
    """A network, and how it is trained.

    Attributes:
        variant: Variant of the network.
        adamw: Whether AdamW trains all; else Muon trains the matrices inside the layers, and AdamW the rest.
        more: Settings of its own.
        quick: Whether a quick run has it.
    """

    variant: str
    adamw: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)
    quick: bool = False

    def grid(self, base: S, times: Sequence[float]) -> list[S]:
        """The settings at every rate; with Muon AdamW's rate is the usual one."""
        own = replace(base, variant=self.variant, optimizer="adamw" if self.adamw else "muon", **self.more)
        if self.adamw:
            return [replace(own, learning_rate=base.learning_rate * each) for each in times]
        return [replace(own, muon_rate=MUON * base.learning_rate * each) for each in times]


def ways(low_rank: str = "lrt", **more: Any) -> dict[str, Way]:
    """The dense network, low rank and its controls, each by both optimisers.

    Args:
        low_rank: Name of the low-rank network.
        **more: Settings of that network, and of its controls.
    """
    networks: dict[str, tuple[str, dict[str, Any]]] = {
        DENSE: ("transformer", {}), low_rank: ("lrt", more), "narrow": ("narrow", more),
        "narrow_flops": ("narrow_flops", more),
    }  # fmt: skip
    quick = (DENSE, by_adamw(low_rank), "narrow", "narrow_flops")
    return {
        name: Way(variant, adamw, settings, name in quick)
        for own, (variant, settings) in networks.items()
        for name, adamw in ((own, False), (by_adamw(own), True))
    } | {dense_first(low_rank): Way("lrt", more=more | {"low_rank_training": "dense_first"})}


def by_adamw(name: str) -> str:
    """The name of a way without Muon."""
    return f"{name} by AdamW"


def dense_first(name: str) -> str:
    """The name of a way of low rank that begins with dense layers."""
    return f"{name} dense first"


def all_ways(name: str) -> tuple[str, ...]:
    """The names of the ways in which a network may be trained."""
    return name, by_adamw(name), dense_first(name)


@dataclass(frozen=True)
class Plan:
    """What is trained.

    Attributes:
        ways: The ways by name, the dense network among them.
        times: Learning rates, in times of the usual one.
        seeds: Number of trainings of each way.
    """

    ways: Mapping[str, Way]
    times: Sequence[float]
    seeds: int

    @classmethod
    def asked(cls, run: Run, every: Mapping[str, Way]) -> Plan:
        """The plan that `OPTIONS` ask for; a quick run has a few ways and one rate where they say nothing."""
        given = run.given
        names = [name for name, way in every.items() if way.quick or not run.quick]
        if given.ways is not None:
            names = [name.strip() for name in given.ways.split(",")]
        if unknown := [name for name in names if name not in every]:
            run.refuse(f"--ways must be of {', '.join(every)}; got {', '.join(unknown)}")
        times: Sequence[float] = (1.0,) if run.quick else TIMES
        if given.rates is not None:
            try:
                times = [float(word) for word in given.rates.split(",")]
            except ValueError:
                times = []
            if not times or not all(0 < each < math.inf for each in times):
                run.refuse(f"--rates must be numbers above 0 with commas between, got {given.rates!r}")
        return cls({name: way for name, way in every.items() if name in {DENSE, *names}}, times, given.seeds)
