"""Survey, III: replaced token detection against masked language modelling at equal tokens.

    python benchmarks/replaced_token_detection.py [--quick] [--json results/replaced_token_detection.jsonl]

Both objectives pre-train one network on WikiText-2, equal steps and tokens; the judge is SST-2 after fine-tuning, over
3 seeds, beside a network that was not pre-trained. Stopped at any moment, the same command goes on.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.console import Console
from rich.table import Table
from transformers import logging

from greenformers.measure.record import Record, append, context
from greenformers.train.evaluate import evaluate
from greenformers.train.run import ensure
from greenformers.train.settings import Settings

OBJECTIVES = ("masked_lm", "replaced_token_detection")
SCRATCH = "not pre-trained"
SEEDS = (0, 1, 2)
T_95 = 2.776  # Student's t for 95 % with 2 x 3 - 2 degrees of freedom
# Small batches: at this size what matters is the number of updates, and the plateau at the frequencies of tokens is
# left after some two thousand.
NETWORK = Settings(
    tokenizer="bpe", length=128, hidden=128, layers=2, heads=4, feed_forward=512, residual="pre",
    position="sinusoidal", dropout=0.1, precision="bf16", log_every=100, save_every=500,
)  # fmt: skip
PRETRAINING: dict[str, Any] = {
    "data": "wikitext2", "vocabulary": 8000, "batch": 8, "steps": 4000, "learning_rate": 1e-3, "evaluate_every": 2000,
}  # fmt: skip
FINE_TUNING: dict[str, Any] = {
    "data": "sst2",
    "objective": "classification",
    "epochs": 3,
    "learning_rate": 5e-4,
    "evaluate_every": 216,
}
QUICK: dict[str, Any] = {"limit": 400, "hidden": 32, "evaluate_every": 4, "log_every": 4}


def pretrain(folder: Path, runs: Path, changed: dict[str, Any], steps: dict[str, Any]) -> dict[str, Path]:
    """A run for each objective: name to folder."""
    base = replace(NETWORK, folder=str(folder), **PRETRAINING | changed | steps)
    for objective in OBJECTIVES:
        ensure(runs / objective, replace(base, objective=objective), Console())
    return {objective: runs / objective for objective in OBJECTIVES}


def fine_tune(folder: Path, runs: Path, starts: dict[str, Path], changed: dict[str, Any]) -> dict[str, list[float]]:
    """Test accuracy in percent of every start and seed. All use one tokenizer: that of the masked language model."""
    base = replace(NETWORK, folder=str(folder), **FINE_TUNING | changed)
    found: dict[str, list[float]] = {}
    for start in (*starts, SCRATCH):
        given: dict[str, Any] = (
            {"init": str(starts[start])} if start in starts else {"tokenizer": str(starts["masked_lm"])}
        )
        for seed in SEEDS:
            run = runs / f"sst2-{start.replace(' ', '-')}-{seed}"
            ensure(run, replace(base, seed=seed, **given), Console())
            found.setdefault(start, []).append(evaluate(run, "test")[0]["accuracy"])
    return found


def table(found: dict[str, list[float]]) -> Table:
    """Accuracy of each start."""
    shown = Table("pre-training", "SST-2 test accuracy (%), by seed", "mean", "standard deviation")
    for start, values in found.items():
        shown.add_row(start, ", ".join(f"{v:.1f}" for v in values), f"{mean(values):.1f}", f"{stdev(values):.1f}")
    return shown


def verdict(found: dict[str, list[float]]) -> str:
    """Whether the claim holds here: a 95 % interval of the difference of the means, over fine-tuning seeds alone."""
    masked, replaced = (found[name] for name in OBJECTIVES)
    difference = mean(replaced) - mean(masked)
    error = ((stdev(masked) ** 2 + stdev(replaced) ** 2) / len(SEEDS)) ** 0.5
    if abs(difference) < T_95 * error:
        word = "within noise: neither confirmed nor refuted"
    else:
        word = "confirmed" if difference > 0 else "refuted"
    figures = f"{difference:+.1f} +- {error:.1f} points (standard error)"
    return f"Replaced token detection minus masked LM: {figures}; one pre-training each: {word}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wikitext2", type=Path, default=Path("../shared/data/wikitext2"))
    parser.add_argument("--sst2", type=Path, default=Path("../shared/data/sst2"))
    parser.add_argument("--runs", type=Path, default=Path("runs/replaced_token_detection"), help="run folders")
    parser.add_argument("--quick", action="store_true", help="under two minutes; the figures mean nothing")
    parser.add_argument("--json", type=Path, help="file the records are added to")
    given = parser.parse_args()
    for folder in (given.wikitext2, given.sst2):
        if not folder.is_dir():
            parser.exit(message=f"skipped: {folder} is not there; name the data with --wikitext2 and --sst2\n")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    runs = given.runs / ("quick" if given.quick else "small")
    changed = dict(QUICK) if given.quick else {}
    starts = pretrain(given.wikitext2, runs, changed, {"steps": 8, "vocabulary": 600} if given.quick else {})
    found = fine_tune(given.sst2, runs, starts, changed | ({"epochs": 1} if given.quick else {}))
    console = Console(width=120)
    console.print(table(found))
    console.print(verdict(found))
    if given.json:
        about = context("benchmarks/replaced_token_detection.py" + " --quick" * given.quick, 0)
        setting = {"data": "sst2", "split": "test", "pretraining": "wikitext2", "steps": PRETRAINING["steps"]}
        append(
            given.json,
            [
                Record(
                    "replaced_token_detection", start, setting | {"seed": seed}, "accuracy", value, "%", context=about
                )
                for start, values in found.items()
                for seed, value in zip(SEEDS, values, strict=True)
            ],
        )


if __name__ == "__main__":
    main()
