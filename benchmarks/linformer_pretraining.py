"""Linformer, figure 3, in small: masked-LM perplexity on WikiText-2 against k, sharing and length, at equal steps.

    python benchmarks/linformer_pretraining.py [--quick] [--json results/linformer_pretraining.jsonl]

Text as bytes, so that a small network learns from its context within a few thousand steps. Every run sees the same
number of bytes a step. Stopped at any moment, the same command goes on.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from transformers import logging

from greenformers.measure.record import METRICS, Record, append, context
from greenformers.report.curves import Panel, line_panels, save
from greenformers.train.run import ensure, metrics_of
from greenformers.train.settings import Settings

TOKENS = 1024  # a step
LENGTH, K = 128, 32
# Small batches: at this size what matters is the number of updates, and the plateau at the frequencies of bytes is left
# after some thousand.
SETTINGS = Settings(
    data="wikitext2", objective="masked_lm", tokenizer="bytes", limit=12_000, length=LENGTH, batch=TOKENS // LENGTH,
    hidden=64, layers=2, heads=4, feed_forward=256, residual="pre", position="sinusoidal", dropout=0.0,
    steps=4000, learning_rate=2e-3, evaluate_every=2000, log_every=100, save_every=500,
)  # fmt: skip
QUICK: dict[str, Any] = {"limit": 300, "steps": 8, "evaluate_every": 4, "log_every": 2, "save_every": 8, "hidden": 32}
KS = (16, 32, 64, 128)
SHARINGS = ("none", "headwise", "key_value", "layerwise")
LENGTHS = (64, 128, 256, 512)


Run = tuple[str, int | None, str | None, int]  # variant, k, sharing, length


def grid() -> dict[str, list[Run]]:
    """The runs of each panel; the one in the middle belongs to all."""
    return {
        "k": [*(("linformer", k, "headwise", LENGTH) for k in KS), ("transformer", None, None, LENGTH)],
        "sharing": [("linformer", K, sharing, LENGTH) for sharing in SHARINGS],
        "length": [("linformer", K, "headwise", length) for length in LENGTHS],
    }


def settings(base: Settings, run: Run) -> Settings:
    """The settings of one run."""
    variant, k, sharing, length = run
    option = None if sharing is None else {"sharing": sharing}
    return replace(base, variant=variant, k=k, option=option, length=length, batch=TOKENS // length)


def measure(base: Settings, runs: Path) -> list[Record]:
    """Every run, started, resumed or read; perplexity at each evaluation."""
    records = []
    for run in dict.fromkeys(run for panel in grid().values() for run in panel):
        variant, k, sharing, length = run
        folder = runs / "-".join(str(part) for part in run)
        ensure(folder, settings(base, run), Console())
        for entry in metrics_of(folder):
            setting = {"k": k, "sharing": sharing, "length": length, "step": entry["step"]}
            for metric, key in (("perplexity", "eval_perplexity"), ("train_loss", "loss")):
                if key in entry:
                    unit = METRICS[metric].unit
                    records.append(Record("linformer_pretraining", variant, setting, metric, entry[key], unit))
    return records


def curves(records: list[Record], metric: str) -> dict[Run, list[tuple[float, float]]]:
    """(step, value) of each run."""
    found: dict[Run, list[tuple[float, float]]] = {}
    for record in records:
        if record.metric == metric:
            at = record.setting
            run = (record.variant, at["k"], at["sharing"], at["length"])
            found.setdefault(run, []).append((at["step"], record.value))
    return found


def picture(records: list[Record], path: Path) -> None:
    """Figure 3: training loss against steps for k, final perplexity against k, sharing's curves, length's curves."""
    losses, ends = curves(records, "train_loss"), curves(records, "perplexity")
    final = {run: points[-1][1] for run, points in ends.items()}
    labels = {
        "k": lambda run: "dense" if run[1] is None else f"k {run[1]}",
        "sharing": lambda run: str(run[2]).replace("_", "-"),
        "length": lambda run: f"N {run[3]}",
    }
    panels = [
        Panel("Step", f"Training loss (nats): {name}", {labels[name](run): losses[run] for run in panel})
        for name, panel in grid().items()
    ]
    dense = final[("transformer", None, None, LENGTH)]
    by_k = {
        f"linformer, N {LENGTH}": [(k, final[("linformer", k, "headwise", LENGTH)]) for k in KS],
        "dense": [(k, dense) for k in KS],
    }
    panels.append(Panel("Projected length k", "Validation perplexity (bytes)", by_k, doubling=True))
    save(line_panels("Linformer: masked language modelling on WikiText-2 in small", panels), path)


def table(records: list[Record]) -> Table:
    """Perplexity of every run at its end, and against the dense network."""
    ends = {run: points[-1][1] for run, points in curves(records, "perplexity").items()}
    dense = ends[("transformer", None, None, LENGTH)]
    shown = Table(
        "study", "variant", "k", "sharing", "N", "perplexity", "dense /", title="Validation perplexity a byte"
    )
    for name, panel in grid().items():
        for run in panel:
            # Other lengths mask and predict other positions: not to be compared with the dense network of 128.
            ratio = f"{dense / ends[run]:.3f}" if run[3] == LENGTH else "-"
            shown.add_row(name, *(str(part or "-") for part in run), f"{ends[run]:.3f}", ratio)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("../shared/data/wikitext2"), help="WikiText-2")
    parser.add_argument("--runs", type=Path, default=Path("runs/linformer_pretraining"), help="run folders")
    parser.add_argument("--quick", action="store_true", help="under two minutes; the figures mean nothing")
    parser.add_argument("--json", type=Path, help="file the records are added to")
    parser.add_argument("--picture", type=Path, help="PNG of the curves")
    given = parser.parse_args()
    if not given.folder.is_dir():
        parser.exit(message=f"skipped: {given.folder} is not there; name the data with --folder\n")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    base = replace(SETTINGS, folder=str(given.folder), **(QUICK if given.quick else {}))
    about = context("benchmarks/linformer_pretraining.py" + " --quick" * given.quick, base.seed)
    records = [
        replace(record, context=about) for record in measure(base, given.runs / ("quick" if given.quick else "small"))
    ]
    Console().print(table(records))
    if given.json:
        append(given.json, records)
    if given.picture:
        picture(records, given.picture)


if __name__ == "__main__":
    main()
