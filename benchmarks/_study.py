"""A study: networks trained alike, each at the best rate of a grid, and what came of it beside the dense network."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from _harness import Run
from _ways import DENSE, Plan
from filelock import FileLock, Timeout
from rich.table import Table

from greenformers.measure.intervals import mean_interval
from greenformers.measure.record import METRICS, Record
from greenformers.train.callbacks import DivergedError, better
from greenformers.train.run import ensure
from greenformers.train.settings import Training

WAIT = 5.0
"""Seconds between looks at what other processes are at work on."""

Values = Mapping[str, Sequence[float]]
"""The figures of every way, one for each seed."""


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
        judged: What was judged of each of these.
    """

    metric: str
    tried: Mapping[str, list[Trained]]
    best: Mapping[str, list[Trained]]
    judged: Mapping[str, list[Any]] = field(default_factory=dict)

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
    judge: Callable[[str, Trained], Any] = lambda *_: None,
) -> Study:
    """Train all that a plan asks for; each score is written as it is known.

    Trainings go on where they were stopped; those whose scores are in the file of `--json` are not repeated. Of several
    processes with the same folder each takes what no other is at work on.

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
    folder.mkdir(parents=True, exist_ok=True)
    work = _Work(run, plan, base, folder, metric, setting, score, judge)
    while left := [*work.left()]:
        if not any(work.does(each) for each in left):
            time.sleep(WAIT)
    return work.study()


class Job(NamedTuple):
    """One training, and whether it is at the best rate, and so is judged."""

    way: str
    settings: Training
    judged: bool


@dataclass
class _Work:
    """What is known of a study so far; the attributes are the arguments of `study`, and what became of trainings."""

    run: Run
    plan: Plan
    base: Training
    folder: Path
    metric: str
    setting: Mapping[str, Any]
    score: Callable[[Path, Mapping[str, float]], float] | None
    judge: Callable[[str, Trained], Any]
    trained: dict[Path, Trained] = field(default_factory=dict)
    judged: dict[Path, Any] = field(default_factory=dict)

    def left(self) -> Iterator[Job]:
        """What can be done next: of every way the rates, and then the seeds at the best one."""
        for name in self.plan.ways:
            grid = self.grid(name)
            rest = [own for own in grid if self.place(name, own) not in self.trained]
            yield from (Job(name, own, judged=False) for own in rest)
            if not rest:
                seeds = self.seeds(name)
                yield from (Job(name, own, judged=True) for own in seeds if self.place(name, own) not in self.judged)

    def does(self, job: Job) -> bool:
        """Do one; False if another process is at work on it."""
        place = self.place(job.way, job.settings)
        try:
            with FileLock(f"{place}.lock", blocking=False):
                own = self.trained.get(place) or self.ended(job.way, job.settings)
                if job.judged:
                    self.judged[place] = self.judge(job.way, own)
        except Timeout:
            return False
        self.trained[place] = own
        return True

    def ended(self, name: str, settings: Training) -> Trained:
        """A finished training, known, read or trained; of one that diverged the score is nan."""
        own = Trained(settings, self.place(name, settings), math.nan)
        at = {**self.setting, "split": "valid", "seed": settings.seed} | own.rates
        if known := self.run.remembered(self.metric, name, at):
            return replace(own, score=known.value)
        diverged = Path(f"{own.folder}.diverged")  # so that neither this process later nor another one trains it again
        try:
            if diverged.is_file():
                raise DivergedError(diverged.read_text())
            scores = ensure(own.folder, settings, self.run.console)
        except DivergedError as error:
            self.run.console.print(f"{own.folder.name}: {error}")
            diverged.write_text(str(error))
            return own
        own = replace(own, score=scores[self.metric] if self.score is None else self.score(own.folder, scores))
        if math.isfinite(own.score):
            self.run.write([self.run.record(self.metric, own.score, name, at, seed=settings.seed)])
        return own

    def grid(self, name: str) -> list[Training]:
        """The settings at every rate."""
        return self.plan.ways[name].grid(self.base, self.plan.times)

    def seeds(self, name: str) -> list[Training]:
        """The settings with every seed at the best rate, which is known."""
        tried = [self.trained[self.place(name, own)] for own in self.grid(name)]
        best = max(tried, key=lambda own: worth(self.metric, own.score)).settings
        return [replace(best, seed=seed) for seed in range(self.plan.seeds)]

    def place(self, name: str, settings: Training) -> Path:
        """The run folder of a training."""
        rate = settings.learning_rate if settings.muon_rate is None else settings.muon_rate
        slug = re.sub(r"[^\w+]+", "-", name)
        return self.folder / f"{slug}-{rate:g}-{settings.seed}"

    def study(self) -> Study:
        """All that is known, when nothing is left to do."""
        places = {name: [self.place(name, own) for own in self.seeds(name)] for name in self.plan.ways}
        tried = {name: [self.trained[self.place(name, own)] for own in self.grid(name)] for name in self.plan.ways}
        best = {name: [self.trained[place] for place in own] for name, own in places.items()}
        return Study(self.metric, tried, best, {name: [self.judged[at] for at in own] for name, own in places.items()})


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
