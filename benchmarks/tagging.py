"""Names in posts (WNUT 2017): networks of full attention, star and bp layers, beside a list of the names of training.

    python benchmarks/tagging.py [--quick] [--seeds 3] [--runs FOLDER] [--json results/tagging.jsonl]

3 layers of d 128, byte-pair tokens, 1,500 steps of 32 of the 3,394 training posts from scratch by Muon, without
pre-trained vectors; F1 of entities on the 1,009 posts of dev, by which nothing is chosen (the test posts are not at
hand). Two baselines: all words outside of entities, and a list: every entity of the training posts is told where its
words stand again, the longest first, as the kind that it mostly is. The posts to judge by were chosen for names that
are new, so that the list tells few. 95 % intervals by bootstrap over posts, of differences to full attention on the
same drawings. The published table printed below, the Star-Transformer's, has CoNLL 2003 and 2012, which are not at
hand: what carries over is the order of the methods. Runs go on where they were stopped.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from _harness import KNOWN, REFERENCE, RUNS, Benchmark, Option, Run, data
from numpy.typing import NDArray
from rich.table import Table

from greenformers.data import Tagged
from greenformers.data import load as load_data
from greenformers.measure.device import accelerator
from greenformers.measure.entities import entities, entity_counts, scores_of
from greenformers.measure.intervals import mean_interval
from greenformers.measure.parameters import parameters
from greenformers.measure.record import Record
from greenformers.train.run import ensure, trained
from greenformers.train.settings import Settings
from greenformers.train.tagging import Tagging

FULL, OUTSIDE, LISTED = "full", "all outside", "list of names"
NETWORKS = {FULL: "transformer", "star": "star", "bp": "bp"}
SPLIT, DRAWINGS = "valid", 1000
SETTINGS = Settings(
    data="wnut17", vocabulary=4000, length=128, hidden=128, layers=3, heads=4, feed_forward=512, position="sinusoidal",
    dropout=0.2, batch=32, steps=1500, learning_rate=1e-3, optimizer="muon", evaluate_every=500,
    save_every=100, log_every=50,
)  # fmt: skip
QUICK: dict[str, Any] = {"limit": 60, "vocabulary": 400, "hidden": 32, "feed_forward": 64, "batch": 8, "steps": 4,
                         "evaluate_every": 4}  # fmt: skip

System = tuple[str, int | None]
"""The name of a network and its seed, or of a baseline."""
Counts = list[tuple[int, int, int]]
"""Entities of each post that are told, predicted and there, see `entity_counts`."""

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="60 posts and one seed; the figures mean nothing",
    options=(
        data("--data", "wnut17", "WNUT 2017"),
        Option("--references", "published tables", Path, REFERENCE),
        Option("--runs", "folder of the run folders", Path, RUNS / "tagging"),
        Option("--seeds", "trainings of each network", int, 3),
    ),
    json=KNOWN,
)


def main(run: Run) -> None:
    base = replace(SETTINGS, folder=str(run.given.data), **(QUICK if run.quick else {}))
    posts = load_data("wnut17", run.given.data, base.limit)
    assert isinstance(posts, Tagged)
    counts: dict[System, Counts] = baselines(posts)
    sizes: dict[str, int] = {}
    for seed in range(1 if run.quick else run.given.seeds):
        for name, variant in NETWORKS.items():
            folder = run.given.runs / ("quick" if run.quick else "full") / f"{name}-{seed}"
            counts[name, seed], sizes[name] = of_run(run, folder, replace(base, variant=variant, seed=seed))
    drawings = {system: drawn(own) for system, own in counts.items()}
    run.show(shown(counts, drawings, sizes))
    keys = [(record.variant, record.metric, record.setting) for record in run.known()]
    records = records_of(run, base, counts, drawings, sizes)
    run.write(record for record in records if (record.variant, record.metric, record.setting) not in keys)
    run.published("slides_star_transformer")


def of_run(run: Run, folder: Path, own: Settings) -> tuple[Counts, int]:
    """What the network of a run folder tells, trained where that has not ended, and the number of its parameters."""
    ensure(folder, own, run.console)
    objective = replace(own, init=str(folder), vocabulary=None).task().objective
    assert isinstance(objective, Tagging)
    model = trained(folder).to(accelerator())  # type: ignore[arg-type]
    return entity_counts(objective.predicted(model, SPLIT, 64), objective.right(SPLIT)), parameters(model)


def baselines(posts: Tagged) -> dict[System, Counts]:
    """What is told without a network."""
    judged = posts.split(SPLIT)
    right = [[posts.tags[tag] for tag in row] for row in judged.tags]
    names = names_of(posts)
    return {
        (OUTSIDE, None): entity_counts([["O"] * len(words) for words in judged.words], right),
        (LISTED, None): entity_counts([by_list(names, words) for words in judged.words], right),
    }


def names_of(posts: Tagged) -> dict[tuple[str, ...], str]:
    """The kind of each name of the training posts, the most frequent one."""
    kinds: dict[tuple[str, ...], Counter[str]] = {}
    for words, tags in zip(posts.train.words, posts.train.tags, strict=True):
        for kind, start, end in entities([posts.tags[tag] for tag in tags]):
            kinds.setdefault(tuple(words[start:end]), Counter())[kind] += 1
    return {name: max(sorted(counted), key=counted.__getitem__) for name, counted in kinds.items()}


def by_list(names: Mapping[tuple[str, ...], str], words: Sequence[str]) -> list[str]:
    """The tags of a post by a list of names, from left to right, the longest name first."""
    longest = max(map(len, names), default=0)
    tags: list[str] = []
    while len(tags) < len(words):
        place = len(tags)
        sizes = range(min(longest, len(words) - place), 0, -1)
        size = next((size for size in sizes if tuple(words[place : place + size]) in names), 0)
        if size:
            kind = names[tuple(words[place : place + size])]
            tags += [f"B-{kind}", *[f"I-{kind}"] * (size - 1)]
        else:
            tags.append("O")
    return tags


def drawn(counts: Counts) -> NDArray[np.float64]:
    """F1 of drawings of as many posts, with replacement; the same posts for every system. Efron 1979."""
    numbers, source = np.asarray(counts), np.random.default_rng(0)
    totals = np.stack([numbers[source.integers(0, len(numbers), len(numbers))].sum(0) for _ in range(DRAWINGS)])
    f1: NDArray[np.float64] = 200 * totals[:, 0] / np.maximum(totals[:, 1] + totals[:, 2], 1)
    return f1


def interval_of(values: NDArray[np.float64]) -> list[float]:
    """The 95 % interval of drawings."""
    return [float(end) for end in np.percentile(values, [2.5, 97.5])]


def base_of(system: System) -> System:
    """Full attention of the same seed; of baselines that of the first."""
    return FULL, system[1] or 0


def records_of(
    run: Run, base: Settings, counts: Mapping[System, Counts], drawings: Mapping[System, NDArray[np.float64]],
    sizes: Mapping[str, int],
) -> list[Record]:  # fmt: skip
    """The scores of all systems; of F1 the interval is that of the difference to full attention."""
    records = []
    for system, own in counts.items():
        name, seed = system
        setting: dict[str, Any] = {"data": "wnut17", "split": SPLIT, "sentences": len(own)}
        if seed is not None:
            sizes_of = {"steps": base.steps, "batch": base.batch, "hidden": base.hidden}
            setting |= {"seed": seed, "optimizer": base.optimizer} | sizes_of
        less = None if name == FULL else interval_of(drawings[system] - drawings[base_of(system)])
        for metric, value in scores_of(own).items():
            interval = less if metric == "f1" else None
            to = FULL if interval else None
            records.append(run.record(metric, value, name, setting, interval=interval, to=to, seed=seed))
        if name in sizes:
            records.append(run.record("parameters", sizes[name], name, setting, source="counted", seed=seed))
    return records


def shown(
    counts: Mapping[System, Counts], drawings: Mapping[System, NDArray[np.float64]], sizes: Mapping[str, int]
) -> Table:  # fmt: skip
    """A row for each system: F1 by seed and its mean, the difference to full attention, precision and recall."""
    table = Table(
        "system", "parameters (M)", "F1 by seed, %", "mean", "less full, by seed", "precision, %", "recall, %",
        title="entities; intervals of 95 %, by posts, of means over seeds by seeds",
    )  # fmt: skip
    for name in dict.fromkeys(name for name, _ in counts):
        own = [system for system in counts if system[0] == name]
        scores = [scores_of(counts[system]) for system in own]
        f1 = [score["f1"] for score in scores]
        intervals = [interval_of(drawings[system]) for system in own]
        less = [interval_of(drawings[system] - drawings[base_of(system)]) for system in own]
        low, high = mean_interval(f1) if len(f1) > 1 else (None, None)
        table.add_row(
            name,
            f"{sizes[name] / 1e6:.2f}" if name in sizes else "",
            "; ".join(
                f"{value:.1f} ({ends[0]:.1f} to {ends[1]:.1f})" for value, ends in zip(f1, intervals, strict=True)
            ),
            f"{mean(f1):.1f}" + ("" if low is None else f" ({low:.1f} to {high:.1f})"),
            "" if name == FULL else "; ".join(f"{ends[0]:+.1f} to {ends[1]:+.1f}" for ends in less),
            f"{mean(score['precision'] for score in scores):.1f}",
            f"{mean(score['recall'] for score in scores):.1f}",
        )
    return table


if __name__ == "__main__":
    BENCHMARK.run(main)
