"""Low rank beside dense networks as small, all trained alike: what the tables on images, texts and speech share.

The networks: dense; low-rank; and the controls of low rank, dense networks of smaller width with as many parameters
(narrow) or as many FLOPs (narrow_flops). Each is trained by Muon and by AdamW: with seed 0 at every rate of the grid,
and with the other seeds at the rate whose score on the validation set is best. The grid of Muon's rates is five times
that of AdamW's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, TypeVar

from _harness import Option, Run, yes
from rich.table import Table
from torch import nn
from torch.optim import AdamW, Optimizer

from greenformers.measure.device import accelerator
from greenformers.measure.intervals import mean_interval
from greenformers.measure.latency import interleaved
from greenformers.measure.record import METRICS, Record
from greenformers.train.bf16 import products
from greenformers.train.callbacks import DivergedError, better
from greenformers.train.optimizer import muon_and_adamw
from greenformers.train.run import ensure
from greenformers.train.schedule import MUON
from greenformers.train.settings import Training
from greenformers.train.task import Task

S = TypeVar("S", bound=Training)

DENSE = "transformer"
TIMES = (0.5, 1.0, 2.0)
"""The grid of learning rates, in times of a benchmark's own."""
STEPS, ROUNDS = 4, 9
"""Steps that are timed, and how often."""
STILL = 1e-7
"""A rate at which weights stay as they are while steps are timed."""

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
    }


def by_adamw(name: str) -> str:
    """The name of a way without Muon."""
    return f"{name} by AdamW"


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


@dataclass(frozen=True)
class Trained:
    """A finished training.

    Attributes:
        settings: Its settings.
        folder: Its run folder, which is missing where the training is known from records alone.
        score: Its score on the validation set.
    """

    settings: Training
    folder: Path
    score: float

    def at_hand(self, run: Run) -> Path:
        """Its run folder, trained again where it is missing."""
        ensure(self.folder, self.settings, run.console)
        return self.folder

    @property
    def rates(self) -> dict[str, float]:
        """Its learning rates, for records."""
        rates = {"learning_rate": self.settings.learning_rate}
        return rates if self.settings.muon_rate is None else rates | {"muon_rate": self.settings.muon_rate}

    @property
    def rate(self) -> float:
        """The learning rate that was chosen from the grid."""
        return list(self.rates.values())[-1]


@dataclass(frozen=True)
class Study:
    """The trainings of some ways.

    Attributes:
        metric: The metric of the scores on the validation set.
        tried: Trainings with seed 0 at every rate, by name of the way.
        best: Trainings with every seed at the best rate, by name of the way.
    """

    metric: str
    tried: Mapping[str, list[Trained]]
    best: Mapping[str, list[Trained]]

    def leader(self, names: Iterable[str]) -> str:
        """The way with the best mean score on the validation set."""
        return max(names, key=lambda name: worth(self.metric, fmean(own.score for own in self.best[name])))

    def table(self) -> Table:
        """The score at every rate, and the rate that was chosen; at an end of the grid there may be a better one."""
        table = Table("", "score by rate", "chosen", title=f"Validation, seed 0: {METRICS[self.metric].label.lower()}")
        for name, tried in self.tried.items():
            cells = ", ".join(f"{own.score:.4g} at {own.rate:g}" for own in tried)
            chosen, rates = self.best[name][0].rate, sorted(own.rate for own in tried)
            ends = {rates[0]: ", the least: try less", rates[-1]: ", the highest: try more"} if len(rates) > 1 else {}
            table.add_row(name, cells, f"{chosen:g}{ends.get(chosen, '')}")
        return table


def worth(metric: str, score: float) -> float:
    """A score to choose by, where greater is better."""
    return better(-score if METRICS[metric].less_is_better else score)


def study(
    run: Run,
    plan: Plan,
    base: Training,
    folder: Path,
    metric: str,
    setting: Mapping[str, Any],
    score: Callable[[Path, Mapping[str, float]], float] | None = None,
    judge: Callable[[str, Trained], object] = lambda *_: None,
) -> Study:
    """Train all that a plan asks for; each score is written as it is known.

    Trainings go on where they were stopped; those whose scores are in the file of `--json` are not repeated.

    Args:
        run: The benchmark that runs.
        plan: The ways, rates and seeds.
        base: Settings that all have in common, of seed 0.
        folder: Folder of the run folders.
        metric: Name of the score on the validation set that decides.
        setting: What all records of the study have in their settings.
        score: Function from a finished run folder and its scores to that score; None: it is among the scores.
        judge: Function that is called with the name of a way and each of its trainings at the best rate, as they end.
    """

    def ended(name: str, settings: Training) -> Trained:
        rate = settings.learning_rate if settings.muon_rate is None else settings.muon_rate
        slug = re.sub(r"[^\w+]+", "-", name)
        place = folder / f"{slug}-{rate:g}-{settings.seed}"
        own = Trained(settings, place, math.nan)
        at = {**setting, "split": "valid", "seed": settings.seed} | own.rates
        if known := run.remembered(metric, name, at):
            return replace(own, score=known.value)
        try:
            scores = ensure(place, settings, run.console)
        except DivergedError as error:
            run.console.print(f"{place.name}: {error}")
            return own
        own = replace(own, score=scores[metric] if score is None else score(place, scores))
        if math.isfinite(own.score):
            run.write([run.record(metric, own.score, name, at, seed=settings.seed)])
        return own

    tried, best = dict[str, list[Trained]](), dict[str, list[Trained]]()
    for name, way in plan.ways.items():
        tried[name] = [ended(name, settings) for settings in way.grid(base, plan.times)]
        best[name] = [max(tried[name], key=lambda each: worth(metric, each.score))]
        judge(name, best[name][0])
        for seed in range(1, plan.seeds):
            best[name].append(ended(name, replace(best[name][0].settings, seed=seed)))
            judge(name, best[name][-1])
    return Study(metric, tried, best)


Values = Mapping[str, Sequence[float]]
"""The figures of every way, one for each seed."""


def means(run: Run, metric: str, values: Values, setting: Mapping[str, Any]) -> list[Record]:
    """The mean of every way over its seeds, and the interval of its differences to the dense network, seed by seed."""
    records = []
    for name, own in values.items():
        apart = gaps(values, name)
        interval = mean_interval(apart) if name != DENSE and len(apart) > 1 else None
        records.append(
            run.record(
                metric, fmean(own), name, {**setting, "seeds": len(own)}, interval=interval,
                to=None if interval is None else DENSE,
            )
        )  # fmt: skip
    return records


def gaps(values: Values, name: str) -> list[float]:
    """The differences of a way to the dense network, seed by seed."""
    return [value - dense for value, dense in zip(values[name], values[DENSE], strict=True)]


def beside(values: Values, name: str) -> str:
    """The mean of these differences with its interval, and whether that is within noise; of one seed the difference."""
    apart = gaps(values, name)
    if name == DENSE:
        return ""
    if len(apart) < 2:
        return f"{apart[0]:+.2f}"
    low, high = mean_interval(apart)
    return f"{fmean(apart):+.2f} ({low:+.2f} to {high:+.2f}{', within noise' if low <= 0 <= high else ''})"


def train_times(run: Run, ran: Study, setting: Mapping[str, Any]) -> dict[str, Record]:
    """The time of all steps of each way, from a few steps of all of them by turns, on the same batches.

    What a run itself took depends on what else the machine did that hour. The ratio to the dense network is the median
    of the rounds' ratios, and a time is the dense network's median by that ratio.
    """
    settings = {name: own[0].settings for name, own in ran.best.items()}
    first = next(iter(settings.values()))
    task, device, count = first.task(), accelerator(), 1 if run.quick else STEPS
    stream = first.schedule.stream(task.objective)
    batches = []
    for step in range(count):
        examples = [stream[place] for place in range(step * stream.batch, (step + 1) * stream.batch)]
        batches.append({name: x.to(device) for name, x in task.objective.collate(examples).items()})

    def steps(own: Training) -> Callable[[], None]:
        model: Any = Task(task.objective, task.tokenizer, own.start()).network()
        model.to(device).train()
        optimizer, precision = _optimizer(model, own), own.schedule.precision

        def call() -> None:
            for batch in batches:
                with products(precision, device):
                    loss = model(**batch).loss
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), own.clip)
                optimizer.step()
                optimizer.zero_grad()

        return call

    calls = {name: steps(own) for name, own in settings.items()}
    timings = interleaved(calls, repeats=15 if run.quick else ROUNDS, warmup=3, device=device)
    whole, records = timings[DENSE].median / count * stream.steps, {}
    for name, timing in timings.items():
        ratio = median(dense / own for dense, own in zip(timings[DENSE].samples, timing.samples, strict=True))
        records[name] = run.record(
            "train_time", whole / ratio, name, {**setting, "timed_steps": count}, ratio=ratio, to=DENSE
        )
    return records


def _optimizer(model: nn.Module, settings: Training) -> Optimizer:
    """The optimiser of a run, at a rate at which it changes nothing."""
    if settings.muon_rate is None:
        return AdamW(model.parameters(), lr=STILL, weight_decay=settings.weight_decay, fused=True)
    decayed = {name for name, _ in model.named_parameters()}
    return muon_and_adamw(
        model, decayed, muon_rate=STILL, learning_rate=STILL, weight_decay=settings.weight_decay,
        bf16=settings.schedule.precision == "bf16",
    )  # fmt: skip


def bar(
    ran: Study, metric: str, values: Values, times: Mapping[str, Record], low_rank: str, most: float
) -> bool:  # fmt: skip
    """Whether low rank loses at most so much of a metric beside the dense network, in no more time; and say so.

    Both are trained by the optimiser that was better on the validation set.
    """
    dense, low = ([name for name in (own, by_adamw(own)) if name in values] for own in (DENSE, low_rank))
    if not low:
        print(f"without {low_rank} there is no bar")
        return True
    other, best = ran.leader(dense), ran.leader(low)
    sign = 1 if METRICS[metric].less_is_better else -1
    lost = sign * (fmean(values[best]) - fmean(values[other]))
    share = (times[other].ratio or 1) / (times[best].ratio or 1)  # of the rounds' ratios, as in the table
    met = lost <= most and share <= 1
    print(
        f"{best} beside {other}: {METRICS[metric].label} {lost:+.2f} worse, {share:.2f} of the training time; "
        f"at most {most:g} worse in no more time: {yes(met)}"
    )
    return met
