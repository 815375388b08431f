"""A T5, a ViT and a Whisper, trained for some minutes, with half of the weights of their linear layers.

    python benchmarks/compress_kinds.py [--quick] [--json results/compress_kinds.jsonl] [--models t5,vit,whisper]

Multi30k's English captions to German, digits of MNIST, strings of spoken digits. Each goes through the command
`greenformers compress` as its users type it: low rank calibrated on a part of the examples, healed on the rest, judged
on a test set beside the dense network, with intervals. `--trained FOLDER` keeps the trained models for the next run.
"""

import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from _harness import Benchmark, Option, Run, data, told
from _trained_kinds import t5, vit, whisper

from greenformers.changes import Change
from greenformers.changes.heal import Heal
from greenformers.changes.low_rank import LowRank
from greenformers.compress.job import Job
from greenformers.compress.run import run as compressed
from greenformers.report.table import tables

KINDS: dict[str, tuple[Callable[..., None], str, int, str]] = {
    "t5": (t5, "multi30k_en_de", 1800, ".tsv"),
    "vit": (vit, "mnist", 2000, ""),
    "whisper": (whisper, "fsdd", 1800, ".tsv"),
}
"""What trains a model, its data, how many steps, and what the names of its examples end in."""
KEEP, STEPS = 0.5, 300

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any training; the figures mean little",
    options=(
        data("--data", ".", "folder of multi30k_en_de, mnist and fsdd"),
        Option("--models", "which, separated by commas", default=",".join(KINDS)),
        Option("--trained", "folder in which trained models are kept", Path),
    ),
)


def main(run: Run) -> bool:
    names = run.given.models.split(",")
    for name in names:
        if name not in KINDS:
            run.refuse(f"--models must be of {', '.join(KINDS)}; got {name!r}")
        run.need("--data", run.given.data / KINDS[name][1])
    place = run.given.trained
    with tempfile.TemporaryDirectory() if place is None else nullcontext(place) as where:
        for name in names:
            train, source, steps, suffix = KINDS[name]
            folder = Path(where) / f"{'quick-' * run.quick}{name}"
            if not (folder / "model").is_dir():
                folder.mkdir(parents=True, exist_ok=True)
                sizes: dict[str, Any] = {"learnt": 300, "judged": 60} if run.quick and name != "t5" else {}
                train(folder, run.given.data / source, steps=8 if run.quick else steps, **sizes)
            recipe: list[Change] = [LowRank(keep=KEEP), Heal(4 if run.quick else STEPS, learning_rate=1e-3)]
            job = Job(
                texts=folder / f"train{suffix}", evaluate=folder / f"test{suffix}", length=64, measure=True,
            )  # fmt: skip
            with tempfile.TemporaryDirectory() as scratch:
                _, records, _ = compressed(str(folder / "model"), recipe, Path(scratch) / "small", job, run.about, told)
            own = [
                replace(record, benchmark=BENCHMARK.name, setting={"model": name} | record.setting)
                for record in records
            ]
            run.show(*tables(own, 140))
            run.write(own)
    return True


if __name__ == "__main__":
    BENCHMARK.run(main)
