"""Linformer, figure 3, in small: masked-LM perplexity on WikiText-2 against k, sharing and length, at equal steps.

    python benchmarks/linformer_pretraining.py [--quick] [--json results/linformer_pretraining.jsonl]

Text as bytes, so that a small network learns from its context within a few thousand steps. Every run sees the same
number of bytes a step. Stopped at any moment, the same command goes on.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from _harness import RUNS, Benchmark, Option, Run, data
from rich.table import Table

from greenformers.measure.record import Record
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
Training = tuple[str, int | None, str | None, int]  # variant, k, sharing, length

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="under two minutes; the figures mean nothing",
    options=(
        data("--folder", "wikitext2", "WikiText-2"),
        Option("--runs", "run folders", Path, RUNS / "linformer_pretraining"),
        Option("--picture", "PNG of the curves", Path),
    ),
)


def main(run: Run) -> None:
    base = replace(SETTINGS, folder=str(run.given.folder), **(QUICK if run.quick else {}))
    records = measure(run, base)
    run.show(table(records))
    run.write(records)
    if run.given.picture:
        picture(records, run.given.picture)


def grid() -> dict[str, list[Training]]:
    """The trainings of each panel; the one in the middle belongs to all."""
    return {
        "k": [*(("linformer", k, "headwise", LENGTH) for k in KS), ("transformer", None, None, LENGTH)],
        "sharing": [("linformer", K, sharing, LENGTH) for sharing in SHARINGS],
        "length": [("linformer", K, "headwise", length) for length in LENGTHS],
    }


def settings(base: Settings, training: Training) -> Settings:
    """The settings of one training."""
    variant, k, sharing, length = training
    option = None if sharing is None else {"sharing": sharing}
    return replace(base, variant=variant, k=k, option=option, length=length, batch=TOKENS // length)


def measure(run: Run, base: Settings) -> list[Record]:
    """Every training, started, resumed or read; perplexity at each evaluation."""
    records = []
    for training in dict.fromkeys(training for panel in grid().values() for training in panel):
        variant, k, sharing, length = training
        folder = run.given.runs / ("quick" if run.quick else "small") / "-".join(str(part) for part in training)
        ensure(folder, settings(base, training), run.console)
        for entry in metrics_of(folder):
            setting = {"k": k, "sharing": sharing, "length": length, "step": entry["step"]}
            for metric, key in (("perplexity", "eval_perplexity"), ("train_loss", "loss")):
                if key in entry:
                    records.append(run.record(metric, entry[key], variant, setting))
    return records


def curves(records: list[Record], metric: str) -> dict[Training, list[tuple[float, float]]]:
    """(step, value) of each run."""
    found: dict[Training, list[tuple[float, float]]] = {}
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


if __name__ == "__main__":
    BENCHMARK.run(main)
