"""Linformer, figure 3, in small: masked-LM perplexity on WikiText-2 against k, sharing and length, at equal steps.

    python benchmarks/linformer_pretraining.py [--quick] [--json results/linformer_pretraining.jsonl]

Text as bytes, so that a small network learns from its context within a few thousand steps. Every run sees the same
number of bytes a step. At first all sit on a plateau, the frequencies of single bytes, which longer sequences leave
later: so the steps of all lengths are doubled, in trainings of their own, until each of them has left it, or up to
--longest; where it is left is shown, and where it is not, too. Stopped at any moment, the same command goes on.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from _harness import RUNS, Benchmark, Option, Run, data
from rich.table import Table

from greenformers.measure.record import Record
from greenformers.report.curves import Panel, line_panels, save
from greenformers.train.masked_lm import MaskedLM
from greenformers.train.run import ensure, metrics_of
from greenformers.train.settings import Settings

TOKENS = 1024  # a step
LENGTH, K = 128, 32
STEPS, LONGEST = 4000, 32_000
# Small batches: at this size what matters is the number of updates, and the plateau at the frequencies of bytes is left
# after some thousand.
SETTINGS = Settings(
    data="wikitext2", objective="masked_lm", tokenizer="bytes", limit=12_000, length=LENGTH, batch=TOKENS // LENGTH,
    hidden=64, layers=2, heads=4, feed_forward=256, residual="pre", position="sinusoidal", dropout=0.0,
    steps=STEPS, learning_rate=2e-3, evaluate_every=2000, log_every=100, save_every=500,
    optimizer="adamw",
)  # fmt: skip
QUICK: dict[str, Any] = {"limit": 300, "steps": 8, "evaluate_every": 4, "log_every": 2, "save_every": 8, "hidden": 32}
KS = (16, 32, 64, 128)
SHARINGS = ("none", "headwise", "key_value", "layerwise")
LENGTHS = (64, 128, 256, 512)
OFF_PLATEAU = 0.9
"""Share of the plateau's perplexity below which it is left."""
Training = tuple[str, int | None, str | None, int, int]  # variant, k, sharing, length, steps

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="under two minutes; the figures mean nothing",
    options=(
        data("--folder", "wikitext2", "WikiText-2"),
        Option("--runs", "run folders", Path, RUNS / "linformer_pretraining"),
        Option("--picture", "PNG of the curves", Path),
        Option("--steps", "steps of every training; those of the lengths are doubled from there on", int),
        Option("--longest", "most steps of the lengths", int),
    ),
)


def main(run: Run) -> None:
    base = replace(SETTINGS, folder=str(run.given.folder), **(QUICK if run.quick else {}))
    steps = run.given.steps if run.given.steps is not None else QUICK["steps"] if run.quick else STEPS
    longest = run.given.longest if run.given.longest is not None else 2 * steps if run.quick else max(steps, LONGEST)
    if not 1 <= steps <= longest:
        run.refuse(f"--steps must be in 1..{longest}, which is --longest, got {steps}")
    frequencies = plateau(base)
    of_lengths = steps
    while True:
        panels = grid(steps, of_lengths)
        records = measure(run, base, panels)
        ends = final(records)
        if of_lengths == longest or all(ends[training] < OFF_PLATEAU * frequencies for training in panels["length"]):
            break
        of_lengths = min(2 * of_lengths, longest)
    run.show(table(records, panels, frequencies))
    run.write(records)
    if run.given.picture:
        picture(records, panels, run.given.picture)


def grid(steps: int, of_lengths: int) -> dict[str, list[Training]]:
    """The trainings of each panel; at equal steps the one in the middle belongs to all."""
    return {
        "k": [*(("linformer", k, "headwise", LENGTH, steps) for k in KS), ("transformer", None, None, LENGTH, steps)],
        "sharing": [("linformer", K, sharing, LENGTH, steps) for sharing in SHARINGS],
        "length": [("linformer", K, "headwise", length, of_lengths) for length in LENGTHS],
    }


def plateau(base: Settings) -> float:
    """The perplexity of a byte of the validation text by the frequencies of its bytes alone."""
    objective = base.task().objective
    assert isinstance(objective, MaskedLM)
    counts = objective.blocks("valid").long().flatten().bincount().double()
    shares = counts[counts > 0] / counts.sum()
    return math.exp(-float((shares * shares.log()).sum()))


def settings(base: Settings, training: Training) -> Settings:
    """The settings of one training."""
    variant, k, sharing, length, steps = training
    option = None if sharing is None else {"sharing": sharing}
    return replace(base, variant=variant, k=k, option=option, length=length, batch=TOKENS // length, steps=steps)


def measure(run: Run, base: Settings, panels: dict[str, list[Training]]) -> list[Record]:
    """Every training, started, resumed or read; perplexity at each evaluation."""
    records = []
    for training in dict.fromkeys(training for panel in panels.values() for training in panel):
        variant, k, sharing, length, steps = training
        folder = run.given.runs / ("quick" if run.quick else "small") / "-".join(str(part) for part in training)
        ensure(folder, settings(base, training), run.console)
        for entry in metrics_of(folder):
            setting = {"k": k, "sharing": sharing, "length": length, "steps": steps, "step": entry["step"]}
            for metric, key in (("perplexity", "eval_perplexity"), ("train_loss", "loss")):
                if key in entry:
                    records.append(run.record(metric, entry[key], variant, setting))
    return records


def curves(records: list[Record], metric: str) -> dict[Training, list[tuple[float, float]]]:
    """(step, value) of each run."""
    by_run: dict[Training, list[tuple[float, float]]] = {}
    for record in records:
        if record.metric == metric:
            at = record.setting
            run = (record.variant, at["k"], at["sharing"], at["length"], at["steps"])
            by_run.setdefault(run, []).append((at["step"], record.value))
    return by_run


def final(records: list[Record]) -> dict[Training, float]:
    """The perplexity of each run at its end."""
    return {run: points[-1][1] for run, points in curves(records, "perplexity").items()}


def picture(records: list[Record], panels_of: dict[str, list[Training]], path: Path) -> None:
    """Figure 3: training loss against steps for k, final perplexity against k, sharing's curves, length's curves."""
    losses, ends = curves(records, "train_loss"), final(records)
    labels = {
        "k": lambda run: "dense" if run[1] is None else f"k {run[1]}",
        "sharing": lambda run: str(run[2]).replace("_", "-"),
        "length": lambda run: f"N {run[3]}",
    }
    panels = [
        Panel("Step", f"Training loss (nats): {name}", {labels[name](run): losses[run] for run in panel})
        for name, panel in panels_of.items()
    ]
    (dense,) = (run for run in panels_of["k"] if run[1] is None)
    by_k = {
        f"linformer, N {LENGTH}": [(run[1] or 0, ends[run]) for run in panels_of["k"] if run != dense],
        "dense": [(k, ends[dense]) for k in KS],
    }
    panels.append(Panel("Projected length k", "Validation perplexity (bytes)", by_k, doubling=True))
    save(line_panels("Linformer: masked language modelling on WikiText-2 in small", panels), path)


def left_at(points: list[tuple[float, float]], frequencies: float) -> str:
    """The step at which a training loss is below the plateau, in words."""
    left = (step for step, loss in points if loss < math.log(OFF_PLATEAU * frequencies))
    return next((f"{step:,.0f}" for step in left), "not left")


def table(records: list[Record], panels: dict[str, list[Training]], frequencies: float) -> Table:
    """Perplexity of every run at its end, where it left the plateau, and its ratio to the dense network."""
    ends, losses = final(records), curves(records, "train_loss")
    (dense,) = (run for run in panels["k"] if run[1] is None)
    shown = Table(
        "study", "variant", "k", "sharing", "N", "steps", "perplexity", "dense /", "plateau left at",
        title=f"Validation perplexity a byte; of the frequencies of bytes {frequencies:.2f}",
    )  # fmt: skip
    for name, panel in panels.items():
        for run in panel:
            # Other lengths mask and predict other positions: not to be compared with the dense network of 128.
            ratio = f"{ends[dense] / ends[run]:.3f}" if run[3:] == dense[3:] else "-"
            left = left_at(losses.get(run, []), frequencies)
            shown.add_row(name, *(str(part or "-") for part in run), f"{ends[run]:.3f}", ratio, left)
    return shown


if __name__ == "__main__":
    BENCHMARK.run(main)
