"""Film reviews as bytes, N 2,048: sparse, low-rank and dense attention at equal steps, beside a byte n-gram baseline.

    python benchmarks/imdb_bytes.py [--quick] [--seeds 2] [--runs FOLDER] [--json results/imdb_bytes.jsonl]

Every network has 2 layers of d 64, learned positions and mean pooling, and sees the same batches in the same order. The
baseline is logistic regression on the tf-idf of byte 1- to 5-grams of the same first 2,048 bytes. Accuracy on the test
reviews with a 95 % interval (Wilson), differences to dense attention with a paired one: what is within it is within
noise. Runs go on where they were stopped.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import torch
from _harness import RUNS, Benchmark, Option, Run, data
from rich.table import Table
from torch import Tensor

from greenformers.data import Labelled
from greenformers.data import load as load_data
from greenformers.measure.quality import correct, paired_difference, predict
from greenformers.train.classification import TextClassification
from greenformers.train.run import ensure, trained
from greenformers.train.settings import Settings
from greenformers.train.stream import Numbered

LENGTH = 2048
BASELINE, NGRAMS = "full", "byte n-grams"
# Keys a query sees: all, 128 projected ones, 129 and a global one, 8 blocks of 32.
VARIANTS: dict[str, dict[str, Any]] = {
    "full": {},
    "linformer": {"k": 128},
    "longformer": {"window": 64, "globals": 1},
    "bigbird": {"block": 32, "random": 3},
}
SETTINGS = Settings(
    data="imdb", tokenizer="bytes", length=LENGTH, hidden=64, layers=2, heads=2, feed_forward=128, pooling="mean",
    residual="pre", dropout=0.1, batch=16, steps=1200, learning_rate=1e-3, evaluate_every=300, save_every=100,
    log_every=50, optimizer="adamw",
)  # fmt: skip
QUICK: dict[str, Any] = {"limit": 32, "steps": 2, "evaluate_every": 2, "batch": 4}

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any training; the figures mean nothing",
    options=(
        data("--data", "imdb", "folder of the reviews"),
        Option("--runs", "folder of the run folders", Path, RUNS / "imdb_bytes"),
        Option("--seeds", "trainings of each variant", int, 2),
    ),
)


def main(run: Run) -> None:
    given = run.given
    runs = given.runs / ("quick" if run.quick else "full")
    reviews = load_data("imdb", given.data)
    assert isinstance(reviews, Labelled)
    answers: dict[tuple[str, int | None], Tensor] = {}
    for seed in range(1 if run.quick else given.seeds):
        for variant in VARIANTS:
            own = settings(variant, given.data, seed, run.quick)
            answers[variant, seed] = of_run(run, runs / f"{variant}-{seed}", own)
    if not run.quick:
        answers[NGRAMS, None] = by_ngrams(reviews)
    run.show(shown(answers))
    records = []
    for (variant, which), right in answers.items():
        value, low, high = wilson(right)
        steps = QUICK["steps"] if run.quick else SETTINGS.steps
        setting = {"length": LENGTH, "seed": which, "steps": steps, "options": VARIANTS.get(variant, {})}
        records.append(run.record("test_accuracy", value, variant, setting, spread=high - low))
    run.write(records)


def settings(variant: str, folder: Path, seed: int, quick: bool) -> Settings:
    own = replace(SETTINGS, folder=str(folder), variant="transformer" if variant == BASELINE else variant, seed=seed)
    options = dict(VARIANTS[variant])
    own = replace(own, k=options.pop("k", None), option=options or None)
    return replace(own, **QUICK) if quick else own


def of_run(run: Run, folder: Path, own: Settings) -> Tensor:
    """Which test reviews the network of a run folder gets right, trained where that has not ended."""
    ensure(folder, own, run.console)
    objective = replace(own, init=str(folder)).task().objective
    assert isinstance(objective, TextClassification)
    predictions = predict(trained(folder), Numbered(objective, "test"), batch_size=16, collate=objective.collate)
    return correct(*predictions)


def by_ngrams(data: Labelled) -> Tensor:
    """Which test reviews the baseline gets right."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    texts = {part: [_bytes(text[0]) for text in data.split(part).texts] for part in ("train", "test")}
    model = make_pipeline(
        TfidfVectorizer(analyzer="char", ngram_range=(1, 5), min_df=5, sublinear_tf=True, lowercase=False),
        LogisticRegression(C=10.0, max_iter=1000),
    )
    model.fit(texts["train"], data.train.labels)
    return torch.as_tensor(model.predict(texts["test"])) == torch.tensor(data.test.labels)


def _bytes(text: str) -> str:
    """The bytes a network sees of a text, between its two marks, as one character each."""
    return text.encode()[: LENGTH - 2].decode("latin-1")


def wilson(right: Tensor) -> tuple[float, float, float]:
    """Accuracy in percent, with the ends of its 95 % interval. Wilson 1927."""
    n, p, z = len(right), right.double().mean().item(), NormalDist().inv_cdf(0.975)
    middle, half = p + z * z / (2 * n), z * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5
    return 100 * p, 100 * (middle - half) / (1 + z * z / n), 100 * (middle + half) / (1 + z * z / n)


def shown(answers: Mapping[tuple[str, int | None], Tensor]) -> Table:
    """Accuracies and what of their differences is more than noise."""
    table = Table("variant", "seed", "test accuracy (%)", "95 % interval", "to full", "")
    for (variant, seed), right in answers.items():
        value, low, high = wilson(right)
        cells = [variant, "" if seed is None else str(seed), f"{value:.1f}", f"{low:.1f} to {high:.1f}"]
        base = answers[BASELINE, seed or 0]
        if variant == BASELINE:
            cells += ["", ""]
        else:
            difference, below, above = paired_difference(right, base)
            word = "within noise" if below <= 0 <= above else ""
            cells += [f"{difference:+.1f} ({below:+.1f} to {above:+.1f})", word]
        table.add_row(*cells)
    return table


if __name__ == "__main__":
    BENCHMARK.run(main)
