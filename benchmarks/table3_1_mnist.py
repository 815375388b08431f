"""Thesis, table 3.1: Transformer, LRT, Linformer and both on MNIST, pixel by pixel, beside the published figures.

By default the setting for a machine without a GPU: images of 14x14, 10,000 of them, 3 epochs. `--full` is the
thesis' own: 785 positions, 60,000 images, 8 epochs. Stopped at any moment, the same command goes on.
"""

import argparse
import csv
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from transformers import logging

from greenformers.data import Splits, load_images
from greenformers.measure.parameters import parameters
from greenformers.measure.quality import correct, paired_difference, predict
from greenformers.measure.record import Record, append, context, with_ratios
from greenformers.model import GreenformerForSequenceClassification
from greenformers.train.run import ensure
from greenformers.train.settings import Settings
from greenformers.train.task import MODEL

VARIANTS = ("transformer", "lrt", "linformer", "lrt+linformer")
PUBLISHED = {"transformer": "Transformer", "lrt": "LRT r=64", "linformer": "Linformer k=64"}
# The printed parameter counts include a word embedding that pixels do not use, and a pooler (d 256).
UNUSED = 30_522 * 256 + 256 * 256 + 256

SETTINGS = Settings(
    data="mnist", hidden=256, layers=4, heads=8, feed_forward=1024, rank=64, residual="pre", dropout=0.0,
    pool=2, limit=10_000, epochs=3, batch=16, learning_rate=1e-3, precision="bf16",
    evaluate_every=10**6, log_every=25, save_every=100,
)  # fmt: skip
FULL = {"pool": 1, "limit": None, "epochs": 8}
QUICK = {"pool": 4, "limit": 500, "epochs": 1, "hidden": 64, "rank": 16, "k": 16, "log_every": 5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("../shared/data/mnist"), help="the idx files of MNIST")
    parser.add_argument("--reference", type=Path, default=Path("../shared/reference/thesis_table3_1_mnist.csv"))
    parser.add_argument("--runs", type=Path, default=Path("runs/table3_1"), help="run folders, to go on from")
    parser.add_argument("--full", action="store_true", help="the thesis' setting; for a GPU")
    parser.add_argument("--quick", action="store_true", help="under two minutes; the figures mean nothing")
    parser.add_argument("--json", type=Path, help="file the records are added to")
    given = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    base = replace(SETTINGS, folder=str(given.folder), **(FULL if given.full else QUICK if given.quick else {}))
    runs = given.runs / ("full" if given.full else "quick" if given.quick else "small")
    data = load_images(base.data, base.folder, base.limit, base.pool, base.seed)
    records = []
    for variant in VARIANTS:
        k = (base.k or 64) if "linformer" in variant else None
        ensure(runs / variant, replace(base, variant=variant, k=k), Console())
        records += judged(runs / variant, variant, data, base)
    report(with_intervals(records, runs, data), given.reference)
    if given.json:
        append(given.json, with_intervals(records, runs, data))
