"""MiniLM-L6 by the recipe combine_minilm.toml: low rank, healed, int8, each beside the others; or with fewer layers.

    python benchmarks/combine_minilm.py [--quick] [--json results/combine_minilm.jsonl]
    python benchmarks/combine_minilm.py --keep-layers 3 [--quick] [--json results/combine_minilm.jsonl]

Calibrated on 1,000 sentences of WikiText-2, healed for 300 steps on 20,000 of these and STS-B's training sentences,
aware of the rounding; judged on STS-B's dev pairs. The recipe without healing, and int8 alone, are made beside it; each
of the three is timed in turns with the original. Bar of the first command: the model as saved is at least 5.1 times
smaller and 2.5 times as fast, and keeps 98.8 % of Spearman's correlation. The second drops every other layer, and no
weights of those that stay.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from _harness import Benchmark, Option, Run, data, told, yes
from compress_minilm import LENGTH, SENTENCES, model_folder, pairs, sentences

from greenformers.changes import Change
from greenformers.changes._recipe import read_recipe
from greenformers.changes.heal import Heal
from greenformers.changes.int8 import Int8
from greenformers.changes.layers import Layers
from greenformers.changes.low_rank import LowRank
from greenformers.compress.job import FILES, Job
from greenformers.compress.run import ORIGINAL
from greenformers.compress.run import run as compressed
from greenformers.data._texts import Texts
from greenformers.measure.record import Record
from greenformers.report.table import tables

RECIPE = Path(__file__).with_suffix(".toml")
SMALLER, FASTER, KEPT = 5.1, 2.5, 0.988
DENSE = "dense"
NAMES: dict[type[Change], str] = {LowRank: "low rank", Layers: "fewer layers", Heal: "healed", Int8: "int8"}
"""What a network is called in the records after a change."""

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any healing; the figures mean little",
    options=(
        data("--data", ".", "folder of wikitext2 and stsb_open"),
        Option("--keep-layers", "so many layers, in place of low rank", int),
    ),
)


def main(run: Run) -> bool:
    given, folder = run.given, model_folder() or run.skip("it needs the extra minilm")
    changes = recipe(given.keep_layers, steps=3 if run.quick else None)
    untrained = [change for change in changes if not change.trains]
    records: dict[tuple[str, str], Record] = {}
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        files = write_texts(here, given.data, *((50, 500) if run.quick else (SENTENCES, 20_000)))
        for number, part in enumerate((changes, untrained, untrained[-1:])):
            used = {"judging", *(need for change in part for need in change.uses)}
            texts: dict[str, Any] = {FILES[need]: path for need, path in files.items() if need in used}
            job = Job(length=LENGTH, measure=True, **texts)
            _, new, _ = compressed(str(folder), part, here / f"small-{number}", job, run.about, told)
            for record in renamed(new, part):
                # What several of the recipes have in common is as in the first.
                records.setdefault((record.variant, record.metric), record)
        sizes = [(path / "model.safetensors").stat().st_size for path in (folder, here / "small-0")]
    run.show(*tables(list(records.values()), 120))
    run.write(records.values())
    last = variants(changes)[-1]
    ratios = {metric: records[last, metric].ratio or 0 for metric in ("spearman", "latency")}
    smaller = sizes[0] / sizes[1]
    print(
        f"as saved {sizes[1]:,} bytes, {smaller:.2f}x smaller than {DENSE}; {ratios['latency']:.2f}x as fast; Spearman "
        f"{100 * ratios['spearman']:.1f} % of it"
    )
    met = smaller >= SMALLER and ratios["latency"] >= FASTER and ratios["spearman"] >= KEPT
    if run.quick or given.keep_layers:
        return True
    print(f"{SMALLER}x smaller, {FASTER}x as fast, {100 * KEPT:.1f} % kept: {yes(met)}")
    return met


def recipe(keep_layers: int | None, steps: int | None) -> list[Change]:
    """The changes of the file; with so many layers in place of low rank, or so many steps of healing, where given."""
    changes: list[Change] = []
    for change in read_recipe(RECIPE):
        if keep_layers is not None and isinstance(change, LowRank):
            changes.append(Layers(keep=keep_layers))
        elif steps is not None and isinstance(change, Heal):
            changes.append(change.but(steps=steps))
        else:
            changes.append(change)
    return changes


def variants(changes: Sequence[Change]) -> list[str]:
    """What the original is called in the records, and the network after each change."""
    names = [DENSE]
    for change in changes:
        name = NAMES[type(change)]
        names.append(f"{names[-1]}, {name}" if isinstance(change, Int8) and names[-1] != DENSE else name)
    return names


def renamed(records: Sequence[Record], changes: Sequence[Change]) -> list[Record]:
    """The records of a recipe under our names, which do not say what the file does: "healed", not "healed 300"."""
    steps = dict.fromkeys(record.variant for record in records if record.metric == "spearman")
    names = dict(zip(steps, variants(changes), strict=True))
    return [
        replace(record, variant=names[record.variant], to=DENSE if record.to == ORIGINAL else record.to)
        for record in records
    ]


def write_texts(folder: Path, source: Path, seen: int, learnt: int) -> dict[str, Path]:
    """Files of so many texts to calibrate with and to learn from, and those to judge by, by what they are for."""
    lines, dev = sentences(source / "wikitext2", learnt), pairs(source / "stsb_open", "valid")
    files = {
        "calibration": folder / "calibration.txt", "training": folder / "training.txt",
        "judging": folder / "stsb_dev.tsv",
    }  # fmt: skip
    files["calibration"].write_text("\n".join(lines[:seen]))
    files["training"].write_text("\n".join([*lines, *pairs(source / "stsb_open", "train").lines]))
    files["judging"].write_text(table(dev))
    return files


def table(texts: Texts) -> str:
    """Scored pairs as a file holds them."""
    rows = [
        "\t".join([*segments, str(score)]) for segments, score in zip(texts.segments, texts.labels or [], strict=True)
    ]
    return "\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n"


if __name__ == "__main__":
    BENCHMARK.run(main)
