"""MiniLM-L6 with fewer layers, heads, neurons, ranks, coordinates: time against quality, kinds alone and together.

    python benchmarks/prune_minilm.py [--quick] [--json results/prune_minilm.jsonl] [--picture docs/prune_minilm.png]

Calibrated on 300 sentences of WikiText-2, without any training; one recipe is also healed for 300 steps on 20,000
such and STS-B's training sentences, labels unread. Quality is Spearman's correlation on 2,000 training pairs of STS-B,
by which recipes were chosen, and on its 625 dev pairs; times are of 8 texts of 128 tokens, all models in turns.
Compressed models lie in runs/prune_minilm, and a run that was stopped goes on from them.

Bars: twice as fast at 97 % of the correlation without training or int8, within 3 minutes on two cores; at 99 % with
int8 or 300 steps of healing, if they are needed; kinds together are above each kind alone at the same time. The weights
of MiniLM come with the extra `minilm`.
"""

import copy
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _harness import RUNS, Benchmark, Option, Run, data, yes
from compress_minilm import LENGTH, minilm, pairs, sentences
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table
from transformers import PreTrainedTokenizerBase

import greenformers
from greenformers import compress
from greenformers.changes import Change, Heads, Heal, Int8, Layers, LowRank, Neurons, Prune, Shrink, Width
from greenformers.compress.quality import judge
from greenformers.data._reader import Reader
from greenformers.data._texts import batches
from greenformers.measure.record import Record, with_ratios
from greenformers.report.plot import looks, new_figure, save, settle

SENTENCES, LEARNT, STEPS = 300, 20_000, 300
BATCH, ROUNDS, TRAIN = 8, 30, 2000
FASTER, KEPT, BEST, MINUTES = 2.0, 0.97, 0.99, 3.0
TOGETHER = "together"


@dataclass(frozen=True)
class Recipe:
    """Changes, and the line of the picture that they belong to."""

    kind: str
    changes: tuple[Change, ...]

    @property
    def label(self) -> str:
        """As in tables."""
        return ", ".join(change.label for change in self.changes)

    @property
    def folder(self) -> Path:
        """Where the model lies."""
        return RUNS / "prune_minilm" / re.sub(r"\W+", "-", self.label)


def fewer(count: int) -> Layers:
    return Layers(count, by="influence")


ALONE = (
    *(Recipe("layers", (fewer(count),)) for count in (5, 4, 3)),
    Recipe("heads", (Heads(0.5),)),
    Recipe("neurons", (Neurons(0.5),)),
    *(Recipe("heads and neurons", (prune,)) for prune in (Prune(0.75), Prune(0.5), Prune(0.5, of="latency"))),
    *(Recipe("low rank", (LowRank(keep=share, solver="sequential_loss"),)) for share in (0.75, 0.5)),
    Recipe("width", (Width(0.75, by="deletion"),)),
    Recipe("heads, neurons, ranks", (Shrink(0.5),)),
    Recipe("int8", (Int8(),)),
)
JOINT = tuple(
    Recipe(TOGETHER, (fewer(layers), Prune(share)))
    for layers, share in ((5, 0.9), (5, 0.75), (5, 0.65), (5, 0.6), (4, 0.7), (3, 0.75))
)
INT8 = tuple(Recipe("together, int8", (*recipe.changes, Int8())) for recipe in JOINT)
HEALING = (
    Recipe("healed", (*JOINT[3].changes, Heal(STEPS))),
    Recipe("healed, int8", (*JOINT[3].changes, Heal(STEPS), Int8())),
)

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="a few sentences and recipes; the figures mean little",
    options=(
        data("--texts", "wikitext2", "WikiText-2"),
        data("--pairs", "stsb_open", "STS-B"),
        Option("--picture", "file the picture is drawn into", Path),
    ),
)


def main(run: Run) -> bool:
    given = run.given
    dense, tokenizer = minilm(run)
    recipes = (ALONE[2], JOINT[4], INT8[4]) if run.quick else (*ALONE, *JOINT, *INT8, *HEALING)
    lines = sentences(given.texts, 500 if run.quick else LEARNT)
    calibration = batches(lines[: 50 if run.quick else SENTENCES], tokenizer, "encoder", LENGTH, 64)
    train, dev = pairs(given.pairs, "train"), pairs(given.pairs, "valid")
    judges = (train.at(range(TRAIN)), dev)
    learnt = [*lines, *train.lines]
    models: dict[str, Any] = {"dense": dense}
    records: list[Record] = []
    for recipe in recipes:
        models[recipe.label], seconds = model_of(recipe, dense, tokenizer, calibration, learnt, quick=run.quick)
        records.append(run.record("compression_time", seconds, recipe.label, {"kind": recipe.kind}))
        print(f"{recipe.label}: {seconds:.0f} s", flush=True)
    for texts in judges:
        judged = run.scores(judge(models, texts, Reader.of(dense, tokenizer, LENGTH)), {"texts": texts.name})
        records += with_ratios(judged, to="dense")
    batch = timed_batch()
    with torch.inference_mode():
        times = run.times({name: partial(model, **batch) for name, model in models.items()}, ROUNDS, 3)
    records += with_ratios([run.record("latency", time, name) for name, time in times.items()], to="dense")
    run.show(shown(records))
    run.write(records)
    if given.picture:
        save(picture(records), given.picture)
    return run.quick or bars(records)


def timed_batch() -> dict[str, torch.Tensor]:
    """The texts whose time is taken: drawn tokens, none of them padding."""
    ids = torch.randint(1000, 20_000, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def model_of(
    recipe: Recipe, dense: Any, tokenizer: PreTrainedTokenizerBase, calibration: list[Any], learnt: list[str],
    *, quick: bool,
) -> tuple[Any, float]:  # fmt: skip
    """The compressed model and the seconds that it took; both are kept, and read where they are there."""
    folder = recipe.folder.with_name("quick-" + recipe.folder.name) if quick else recipe.folder
    if not (folder / "seconds.json").is_file():
        *before, last = recipe.changes
        small, seconds = copy.deepcopy(dense), 0.0
        if before:  # most begin as another recipe does
            small, seconds = model_of(Recipe("", tuple(before)), dense, tokenizer, calibration, learnt, quick=quick)
        trained = {"texts": learnt, "tokenizer": tokenizer, "length": LENGTH, "teacher": dense} if last.trains else {}
        start = time.monotonic()
        compress(small, last, calibration=calibration, **trained)
        seconds += time.monotonic() - start
        greenformers.save(small, folder)
        (folder / "seconds.json").write_text(json.dumps(seconds))
    return greenformers.load(folder), float(json.loads((folder / "seconds.json").read_text()))


def of(records: Iterable[Record], metric: str, label: str, texts: str = "") -> Record:
    """The record of a recipe."""
    return next(
        record
        for record in records
        if (record.metric, record.variant) == (metric, label) and texts in record.setting.get("texts", "")
    )


def kinds_in(records: Iterable[Record]) -> dict[str, list[str]]:
    """The recipes of each kind."""
    kinds: dict[str, list[str]] = {}
    for record in records:
        if record.metric == "compression_time":
            kinds.setdefault(record.setting["kind"], []).append(record.variant)
    return kinds


def shown(records: list[Record]) -> Table:
    table = Table("recipe", "made in", "times as fast", "Spearman, train", "of dense", "dev", "of dense", "difference")
    for labels in kinds_in(records).values():
        for label in labels:
            train, dev = (of(records, "spearman", label, texts) for texts in ("train", "valid"))
            low, high = dev.interval or (0.0, 0.0)
            table.add_row(
                label, f"{of(records, 'compression_time', label).value:.0f} s",
                f"{of(records, 'latency', label).ratio or 0:.2f}x", f"{train.value:.2f}", f"{train.ratio or 0:.1%}",
                f"{dev.value:.2f}", f"{dev.ratio or 0:.1%}", f"{low:+.2f} to {high:+.2f}",
            )  # fmt: skip
    return table


def picture(records: list[Record]) -> Figure:
    """What is left of the correlation against how many times as fast, a line for each kind."""
    figure = new_figure(8.6, 5.0, "MiniLM-L6 with fewer units of each kind: 8 texts of 128 tokens")
    axes = figure.add_subplot()
    draw(axes, records, kinds_in(records), partial(speed, records))
    axes.axhline(100 * KEPT, color="gray", linewidth=0.6)
    axes.set_xlabel("Times as fast as dense")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    settle(figure)
    return figure


def draw(axes: Axes, records: list[Record], kinds: Mapping[str, Sequence[str]], x: Callable[[str], float]) -> None:
    """Draw what is left of the correlation against something else, a line for the models of each kind."""
    dress = looks(("dense", *kinds))
    for kind, labels in kinds.items():
        points = sorted((x(label), 100 * quality(records, label)) for label in labels)
        axes.plot(*zip(*points, strict=True), dress[kind].line, color=dress[kind].colour, marker=dress[kind].marker,
                  markersize=5, label=kind)  # fmt: skip
    axes.set_ylabel("Spearman on STS-B dev (% of dense)")


def bars(records: list[Record]) -> bool:
    """Whether the bars are met."""
    fast = {
        label: kind for kind, labels in kinds_in(records).items() for label in labels if speed(records, label) >= FASTER
    }
    untrained = [label for label, kind in fast.items() if "healed" not in kind and "int8" not in kind]
    met = True
    for labels, least, within in ((untrained, KEPT, MINUTES), (list(fast), BEST, None)):
        bar = f"at least {FASTER:g}x at {least:.0%}" + (f" in {within:g} min, untrained" if within else "")
        if not labels:
            met = False
            print(f"{bar}: {yes(False)}, no recipe is as fast")
            continue
        # By the training pairs, so that those that judge it had no part in the choice.
        best = max(labels, key=lambda label: of(records, "spearman", label, "train").ratio or 0.0)
        minutes = of(records, "compression_time", best).value / 60
        done = quality(records, best) >= least and (within is None or minutes <= within)
        met &= done
        print(f"{best}: {speed(records, best):.2f}x at {quality(records, best):.1%} in {minutes:.1f} min")
        print(f"{bar}: {yes(done)}")
    healed = HEALING[0].label
    print(f"{healed}: {speed(records, healed):.2f}x at {quality(records, healed):.1%}")
    alone = [
        recipe.label
        for recipe in ALONE
        if not any(
            speed(records, joint.label) >= speed(records, recipe.label)
            and quality(records, joint.label) >= quality(records, recipe.label)
            for joint in (*JOINT, *INT8)
        )
    ]
    rest = f", but not of {', '.join(alone)}" if alone else ""
    print(f"recipes of several kinds are at least as fast and as good as each of one kind{rest}: {yes(not alone)}")
    return met and not alone


def speed(records: list[Record], label: str) -> float:
    """Times as fast as dense."""
    return of(records, "latency", label).ratio or 0.0


def quality(records: list[Record], label: str) -> float:
    """Share of the correlation on dev pairs that is left."""
    return of(records, "spearman", label, "valid").ratio or 0.0


if __name__ == "__main__":
    BENCHMARK.run(main)
