"""Healing by AdamW and by Muon, each at several rates: which brings back more, in as many steps, of what was changed.

    python benchmarks/healing_rates.py [--quick] [--seeds 3] [--only layers] [--steps 300]
        [--json results/healing_rates.jsonl]

MiniLM-L6 changed in five ways - a quarter of its linear weights by low rank; half of them, with the rounding of int8 in
place; half of its layers; half of its heads and neurons; a student of half the width - and healed on 20,000 sentences
of WikiText-2 and, without their scores, those of STS-B's training part. Rates: AdamW's 0.5, 1 and 2 times 1e-3, Muon's
five times these, with seed 0; with the other seeds the one whose distance to the original is least on sentences held
out of healing. Judged on STS-B's dev pairs, by which nothing is chosen. Bar: by Muon the distance is less wherever it
was measured. Stopped, the same command goes on. The weights of MiniLM come with the extra `minilm`.
"""

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from _harness import Benchmark, Option, Run, data, told, yes
from compress_minilm import LENGTH, minilm, pairs, sentences
from rich.table import Table

from greenformers import compress
from greenformers.changes import Change, Heal, Int8, Layers, LowRank, Narrow, Prune
from greenformers.compress.quality import judge
from greenformers.data._reader import Reader
from greenformers.data._texts import Texts, batches
from greenformers.measure.record import Record
from greenformers.train.bf16 import quickest
from greenformers.train.schedule import MUON

STEPS, RATE, TIMES = 300, 1e-3, (0.5, 1.0, 2.0)

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="two ways, hardly any healing; the figures mean nothing",
    options=(
        data("--texts", "wikitext2", "WikiText-2"),
        data("--pairs", "stsb_open", "STS-B"),
        Option("--seeds", "healings of each way, all but the first at its best rate", int, 1),
        Option("--only", "the ways whose name holds this"),
        Option("--steps", f"of healing; {STEPS} if not given", int),
    ),
)


def changes() -> dict[str, tuple[list[Change], list[Change]]]:
    """The changes before healing and those after it, by name of the way."""
    return {
        "a quarter by low rank": ([LowRank(keep=0.25, solver="sequential_loss")], []),
        "half by low rank, int8": ([LowRank(keep=0.5, solver="sequential_loss")], [Int8()]),
        "half the layers": ([Layers(3)], []),
        "half the heads and neurons": ([Prune(0.5)], []),
        "half the width": ([Narrow(192)], []),
    }


@dataclass(frozen=True)
class Healing:
    """One healing.

    Attributes:
        way: Name of what is healed.
        optimizer: "adamw" or "muon".
        rate: Its rate; of Muon the rate of AdamW, which trains the rest, is a fifth of it.
        seed: Its seed.
    """

    way: str
    optimizer: str
    rate: float
    seed: int

    def change(self, steps: int, aware: bool) -> Heal:
        """The change that heals so."""
        rates = {"learning_rate": self.rate}
        if self.optimizer == "muon":
            rates = {"learning_rate": self.rate / MUON, "muon_rate": self.rate}
        return Heal(steps, aware=aware, precision=quickest(), **rates)


def main(run: Run) -> bool:
    given = run.given
    ways = {name: own for name, own in changes().items() if (given.only or name) in name}
    if not ways:
        run.refuse(f"--only must be a part of {'; '.join(changes())}; got {given.only!r}")
    if run.quick:
        ways = {name: ways[name] for name in list(ways)[-2:]}
    study = Study(run, ways)
    grid = [
        Healing(way, optimizer, RATE * times * (MUON if optimizer == "muon" else 1), 0)
        for way in ways
        for optimizer in ("adamw", "muon")
        for times in ((1.0,) if run.quick else TIMES)
    ]
    records = run.trainings(grid, study.at, study.healed, _said)
    best = [study.best(records, [each for each in grid if (each.way, each.optimizer) == own]) for own in _pairs(grid)]
    others = [replace(each, seed=seed) for each in best for seed in range(1, given.seeds)]
    if others:
        records = run.trainings(others, study.at, study.healed, _said)
    groups = {each: [each, *(other for other in others if replace(other, seed=0) == each)] for each in best}
    run.show(table(study, records, groups), rates(study, records, grid))
    met = True
    for adamw, muon in zip(best[::2], best[1::2], strict=True):
        one, other = (fmean(study.distance(records, each) for each in groups[own]) for own in (adamw, muon))
        met &= other < one
        print(f"{adamw.way}: distance {other:.4g} by Muon, {one:.4g} by AdamW; less by Muon: {yes(other < one)}")
    return met or run.quick


class Study:
    """What is healed and judged, prepared once.

    Attributes:
        run: The benchmark that runs.
        ways: Changes before and after healing, by name.
    """

    def __init__(self, run: Run, ways: Mapping[str, tuple[list[Change], list[Change]]]) -> None:
        given, count = run.given, (50, 500) if run.quick else (1000, 20_000)
        self.run, self.ways = run, ways
        self.steps: int = given.steps or (4 if run.quick else STEPS)
        self.dense, self._tokenizer = minilm(run)
        self._calibration = batches(sentences(given.texts, count[0]), self._tokenizer, "encoder", LENGTH, 64)
        self._sentences = [*sentences(given.texts, count[1]), *pairs(given.pairs, "train").lines]
        judged = pairs(given.pairs, "valid")
        self._judged: Texts = judged.at(range(60)) if run.quick else judged
        self._changed: dict[str, Any] = {}

    def at(self, healing: Healing) -> tuple[str, dict[str, Any]]:
        """Variant and setting of the records of a healing."""
        setting = {
            "optimizer": healing.optimizer, "rate": healing.rate, "steps": self.steps, "seed": healing.seed,
            "precision": quickest(), "texts": self._judged.name,
        }  # fmt: skip
        return healing.way, setting

    def healed(self, healing: Healing) -> list[Record]:
        """Heal once, and judge."""
        before, after = self.ways[healing.way]
        if healing.way not in self._changed:
            self._changed = {healing.way: self._compressed(copy.deepcopy(self.dense), before)[0]}
        small = copy.deepcopy(self._changed[healing.way])
        change = healing.change(self.steps, bool(after))
        start = time.monotonic()
        small, report = self._compressed(small, [change, *after], healing.seed)
        seconds = time.monotonic() - start
        log = report.steps[0].report.log
        distances = [entry["eval_distance"] for entry in log if "eval_distance" in entry]
        scores = judge(
            {"dense": self.dense, healing.way: small}, self._judged, Reader.of(self.dense, self._tokenizer, LENGTH)
        )
        variant, setting = self.at(healing)
        first, last = distances[0], min(distances[0], distances[-1])  # a network that came off worse stays as it was
        return [
            *(own for own in self.run.scores(scores, setting) if own.variant == variant),
            self.run.record("distance", first, f"{variant}, not healed", setting, seed=healing.seed),
            self.run.record("compression_time", seconds, variant, setting, seed=healing.seed),
            self.run.record("distance", last, variant, setting, seed=healing.seed),
        ]

    def _compressed(self, model: Any, steps: list[Change], seed: int = 0) -> tuple[Any, Any]:
        report = compress(
            model, steps, calibration=self._calibration, texts=self._sentences, tokenizer=self._tokenizer,
            teacher=self.dense, length=LENGTH, seed=seed, progress=told,
        )  # fmt: skip
        return model, report

    def values(self, records: list[Record], healing: Healing) -> dict[str, float]:
        """The figures of a healing; of another width there is no cosine to the original."""
        variant, setting = self.at(healing)
        return {
            own.metric: own.value
            for own in records
            if own.variant == variant and own.setting.items() >= setting.items()
        }

    def distance(self, records: list[Record], healing: Healing) -> float:
        """How far from the original it ended."""
        return self.values(records, healing)["distance"]

    def best(self, records: list[Record], healings: list[Healing]) -> Healing:
        """The healing that ended nearest to the original."""
        return min(healings, key=lambda each: self.distance(records, each))


def _pairs(grid: list[Healing]) -> list[tuple[str, str]]:
    """Ways and optimisers, AdamW before Muon."""
    return list(dict.fromkeys((each.way, each.optimizer) for each in grid))


def _said(records: list[Record]) -> str:
    *scores, before, seconds, after = records
    figures = ", ".join(f"{own.metric} {own.value:.4g}" for own in (*scores, seconds))
    setting = after.setting
    return f"{setting['optimizer']} at {setting['rate']:g}: distance {before.value:.4g} -> {after.value:.4g}, {figures}"


def table(study: Study, records: list[Record], groups: Mapping[Healing, list[Healing]]) -> Table:
    """The means over seeds at the best rate of each."""
    shown = Table("", "optimiser", "rate", "distance", "Spearman, %", "cosine", "seconds")
    for best, own in groups.items():
        figures = [study.values(records, each) for each in own]
        means = {metric: fmean(each[metric] for each in figures) for metric in figures[0]}
        shown.add_row(
            best.way, best.optimizer, f"{best.rate:g}", f"{means['distance']:.4f}", f"{means['spearman']:.1f}",
            f"{means['cosine']:.3f}" if "cosine" in means else "", f"{means['compression_time']:.0f}",
        )  # fmt: skip
    return shown


def rates(study: Study, records: list[Record], grid: list[Healing]) -> Table:
    """The distance at every rate, with seed 0."""
    shown = Table("", "optimiser", "distance by rate", title="Seed 0")
    for way, optimizer in _pairs(grid):
        own = [each for each in grid if (each.way, each.optimizer) == (way, optimizer)]
        cells = ", ".join(f"{study.distance(records, each):.4f} at {each.rate:g}" for each in own)
        shown.add_row(way, optimizer, cells)
    return shown


if __name__ == "__main__":
    BENCHMARK.run(main)
