"""Thesis, table 3.1: Transformer, LRT, Linformer and both on MNIST, pixel by pixel, beside the published figures.

    python benchmarks/table3_1_mnist.py [--full | --quick] [--json results/table3_1_mnist.jsonl]

By default the setting for a machine without a GPU: images of 14x14, 10,000 of them, 3 epochs. `--full` is the
thesis' own: 785 positions, 60,000 images, 8 epochs. Stopped at any moment, the same command goes on.
"""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from _harness import REFERENCE, RUNS, Benchmark, Option, Run, data
from rich.table import Table
from torch import Tensor

from greenformers.data import Splits, load_images
from greenformers.measure.parameters import parameters
from greenformers.measure.quality import correct, paired_difference, predict
from greenformers.measure.record import Record
from greenformers.train import checkpoint
from greenformers.train.run import ensure, trained
from greenformers.train.settings import Settings

BASELINE = "transformer"
VARIANTS = (BASELINE, "lrt", "linformer", "lrt+linformer")
PUBLISHED = {"transformer": "Transformer", "lrt": "LRT r=64", "linformer": "Linformer k=64"}
# The printed parameter counts include a word embedding that pixels do not use, and a pooler, both of width 256.
UNUSED = 30_522 * 256 + 256 * 256 + 256

SETTINGS = Settings(
    data="mnist", hidden=256, layers=4, heads=8, feed_forward=1024, rank=64, residual="pre", dropout=0.0,
    pool=2, limit=10_000, epochs=3, batch=8, learning_rate=5e-4, precision="bf16",
    evaluate_every=10**6, log_every=25, save_every=100,
)  # fmt: skip
K = 64
FULL: dict[str, Any] = {"pool": 1, "limit": None, "epochs": 8}
QUICK: dict[str, Any] = {
    "pool": 4,
    "limit": 500,
    "epochs": 1,
    "hidden": 64,
    "feed_forward": 256,
    "rank": 16,
    "log_every": 5,
}

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="under two minutes; the figures mean nothing",
    options=(
        data("--folder", "mnist", "the idx files of MNIST"),
        Option("--reference", "the published figures", Path, REFERENCE / "thesis_table3_1_mnist.csv"),
        Option("--runs", "run folders, to go on from", Path, RUNS / "table3_1"),
        Option("--full", "the thesis' setting; for a GPU", bool, default=False),
    ),
)


def main(run: Run) -> None:
    given = run.given
    size = "full" if given.full else "quick" if run.quick else "small"
    base = replace(SETTINGS, folder=str(given.folder), **{"full": FULL, "quick": QUICK, "small": {}}[size])
    records = measure(run, base, given.runs / size, 16 if run.quick else K)
    run.show(table(records, given.reference))
    run.write(records)


def measure(run: Run, base: Settings, runs: Path, k: int) -> list[Record]:
    """Every variant, trained, resumed or read; accuracies, and parameters as here and as the thesis counts them."""
    data = load_images(base.data, base.folder, base.limit, base.pool, base.seed)
    setting = {"data": "mnist", "length": data.length + 1, "images": len(data.train), "epochs": base.epochs}
    records: list[Record] = []
    right: dict[str, Tensor] = {}
    for variant in VARIANTS:
        ensure(runs / variant, replace(base, variant=variant, k=k if "linformer" in variant else None), run.console)
        records += judged(run, runs / variant, variant, setting, data, right)
    return records


def answers(folder: Path, data: Splits) -> dict[str, Tensor]:
    """Which training and which test images a trained variant gets right; computed once a run."""
    kept = folder / "answers.json"
    if not kept.exists():
        model = trained(folder)
        parts = {"train": data.train, "test": data.test}
        found = {name: correct(*predict(model, part, batch_size=64)) for name, part in parts.items()}
        checkpoint.replace(
            kept, json.dumps({name: "".join("01"[bit] for bit in right) for name, right in found.items()})
        )
    return {name: torch.tensor([bit == "1" for bit in bits]) for name, bits in json.loads(kept.read_text()).items()}


def judged(
    run: Run, folder: Path, variant: str, setting: dict[str, Any], data: Splits, right: dict[str, Tensor]
) -> list[Record]:
    """The figures of one trained variant; `right` collects which test images each variant gets right."""
    found = answers(folder, data)
    right[variant] = found["test"]
    interval = None
    if variant != BASELINE:
        _, low, high = paired_difference(right[variant], right[BASELINE])
        interval = [low, high]
    figures = {
        "parameters": (parameters(trained(folder)), None),
        "train_accuracy": (100 * found["train"].double().mean().item(), None),
        "test_accuracy": (100 * right[variant].double().mean().item(), interval),
    }
    return [
        run.record(metric, value, variant, setting, interval=between, to=BASELINE if between else None)
        for metric, (value, between) in figures.items()
    ]


def table(records: list[Record], reference: Path) -> Table:
    """Ours beside the published figures."""
    found = {(record.variant, record.metric): record for record in records}
    published = {}
    if reference.exists():
        with reference.open() as file:
            published = {row["model"]: row for row in csv.DictReader(file)}
    shown = Table(
        "variant", "parameters (M)", "as the thesis counts", "published", "train %", "published", "test %", "published",
        "test, minus transformer: 95 % interval", title=f"MNIST: {records[0].setting}",
    )  # fmt: skip
    for variant in VARIANTS:
        count, train, test = (found[variant, name] for name in ("parameters", "train_accuracy", "test_accuracy"))
        row = published.get(PUBLISHED.get(variant, ""), {})
        printed = [float(row[key]) if row else None for key in ("parameters", "train_accuracy", "test_accuracy")]
        interval = "-" if test.interval is None else f"{test.interval[0]:+.2f} to {test.interval[1]:+.2f}"
        shown.add_row(
            variant, f"{count.value / 1e6:.2f}", f"{(count.value + UNUSED) / 1e6:.2f}",
            "-" if printed[0] is None else f"{printed[0] / 1e6:.1f}",
            f"{train.value:.2f}", "-" if printed[1] is None else f"{100 * printed[1]:.2f}",
            f"{test.value:.2f}", "-" if printed[2] is None else f"{100 * printed[2]:.2f}", interval,
        )  # fmt: skip
    return shown


if __name__ == "__main__":
    BENCHMARK.run(main)
