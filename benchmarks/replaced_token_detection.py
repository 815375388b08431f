"""Survey, III: replaced token detection against masked language modelling at equal tokens.

    python benchmarks/replaced_token_detection.py [--quick] [--json results/replaced_token_detection.jsonl]

Both objectives pre-train one network on WikiText-2, equal steps and tokens; the judge is SST-2 after fine-tuning, over
3 seeds, beside a network that was not pre-trained. Stopped at any moment, the same command goes on.
"""

from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from _harness import RUNS, Benchmark, Option, Run, data
from rich.table import Table

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
    position="sinusoidal", dropout=0.1, precision="bf16", log_every=100, save_every=500, optimizer="adamw",
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

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="under two minutes; the figures mean nothing",
    options=(
        data("--wikitext2", "wikitext2", "folder of WikiText-2"),
        data("--sst2", "sst2", "folder of SST-2"),
        Option("--runs", "run folders", Path, RUNS / "replaced_token_detection"),
    ),
)


def main(run: Run) -> None:
    changed = dict(QUICK) if run.quick else {}
    starts = pretrain(run, changed, {"steps": 8, "vocabulary": 600} if run.quick else {})
    accuracies = fine_tune(run, starts, changed | ({"epochs": 1} if run.quick else {}))
    run.show(table(accuracies))
    print(verdict(accuracies))
    setting = {
        "data": "sst2",
        "split": "test",
        "pretraining": "wikitext2",
        "steps": 8 if run.quick else PRETRAINING["steps"],
    }
    run.write(
        run.record("accuracy", value, start, setting | {"seed": seed})
        for start, values in accuracies.items()
        for seed, value in zip(SEEDS, values, strict=True)
    )


def folder_of(run: Run) -> Path:
    """Where the trainings are."""
    runs: Path = run.given.runs
    return runs / ("quick" if run.quick else "small")


def pretrain(run: Run, changed: dict[str, Any], steps: dict[str, Any]) -> dict[str, Path]:
    """A run for each objective: name to folder."""
    base = replace(NETWORK, folder=str(run.given.wikitext2), **PRETRAINING | changed | steps)
    folders = {objective: folder_of(run) / objective for objective in OBJECTIVES}
    for objective, folder in folders.items():
        ensure(folder, replace(base, objective=objective), run.console)
    return folders


def fine_tune(run: Run, starts: dict[str, Path], changed: dict[str, Any]) -> dict[str, list[float]]:
    """Test accuracy in percent of every start and seed. All use one tokenizer: that of the masked language model."""
    base = replace(NETWORK, folder=str(run.given.sst2), **FINE_TUNING | changed)
    accuracies: dict[str, list[float]] = {}
    for start in (*starts, SCRATCH):
        given: dict[str, Any] = (
            {"init": str(starts[start])} if start in starts else {"tokenizer": str(starts["masked_lm"])}
        )
        for seed in SEEDS:
            folder = folder_of(run) / f"sst2-{start.replace(' ', '-')}-{seed}"
            ensure(folder, replace(base, seed=seed, **given), run.console)
            accuracies.setdefault(start, []).append(evaluate(folder, "test").scores["accuracy"])
    return accuracies


def table(accuracies: dict[str, list[float]]) -> Table:
    """Accuracy of each start."""
    shown = Table("pre-training", "SST-2 test accuracy (%), by seed", "mean", "standard deviation")
    for start, values in accuracies.items():
        shown.add_row(start, ", ".join(f"{v:.1f}" for v in values), f"{mean(values):.1f}", f"{stdev(values):.1f}")
    return shown


def verdict(accuracies: dict[str, list[float]]) -> str:
    """Whether the claim holds here: a 95 % interval of the difference of the means, over fine-tuning seeds alone."""
    masked, replaced = (accuracies[name] for name in OBJECTIVES)
    difference = mean(replaced) - mean(masked)
    error = ((stdev(masked) ** 2 + stdev(replaced) ** 2) / len(SEEDS)) ** 0.5
    if abs(difference) < T_95 * error:
        word = "within noise: neither confirmed nor refuted"
    else:
        word = "confirmed" if difference > 0 else "refuted"
    figures = f"{difference:+.1f} +- {error:.1f} points (standard error)"
    return f"Replaced token detection minus masked LM: {figures}; one pre-training each: {word}."


if __name__ == "__main__":
    BENCHMARK.run(main)
