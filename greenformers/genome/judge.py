"""Comparison of the fine-tuned network with its baselines, on the same draws of people. Cahyawijaya 2021, table 5.2."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from greenformers.genome import baselines
from greenformers.genome.people import People
from greenformers.genome.risk import Chances
from greenformers.genome.settings import Finetuning
from greenformers.measure.record import Record

if TYPE_CHECKING:
    from numpy.typing import NDArray

KMER = 6


def records(
    settings: Finetuning, chances: Sequence[Chances], features: Mapping[str, Any], people: People, *,
    others: Mapping[str, Sequence[Chances]] | None = None,
) -> list[Record]:  # fmt: skip
    """Scores of the network and of its baselines: means over the draws, with standard deviations as spreads.

    All models have the same people. The difference in AUC to the network has a 95 % bootstrap interval: all who are
    tested in any draw are drawn again, with replacement, the same for both models and in all draws, which share people.

    Args:
        settings: Settings of the network.
        chances: Probabilities of the network for each draw.
        features: Features of each baseline by its name, see `features`.
        people: All people.
        others: Probabilities of further models for each draw, by name.
    """
    first, shares = settings.split, (settings.valid_share, settings.test_share)
    draws = [people.splits(first + draw, *shares) for draw in range(len(chances))]
    models: dict[str, Sequence[Chances]] = {settings.variant: chances}
    for name, values in features.items():
        models[name] = [baselines.regression(values, people.labels, draw) for draw in draws]
    models |= others or {}
    setting = {
        "region": str(people.region), "people": len(people.names), "draws": len(chances),
        "predicted": people.phenotypes[1],
    }  # fmt: skip
    tested = [draw["test"] for draw in draws]
    rows = []
    for name, model_chances in models.items():
        scores = [result.scores() for result in model_chances]
        for metric in ("auc", "f1"):
            mean, deviation = summary([result[metric] for result in scores])
            interval = None
            if metric == "auc" and model_chances is not chances:
                interval = list(difference(model_chances, chances, tested))
            rows.append(
                Record.of(
                    metric, mean, benchmark="genome_risk", variant=name, setting=setting, spread=deviation,
                    to=None if interval is None else settings.variant, interval=interval,
                )
            )  # fmt: skip
    return rows


def features(people: People, positions: Sequence[int] = ()) -> dict[str, Any]:
    """Features of the logistic regressions, by the name of the baseline.

    Args:
        people: All people.
        positions: Positions of known variants, for a baseline of their own.

    Raises:
        ValueError: People do not differ, or not at `positions`; or the region is too short for k-mers.
    """
    if len(people.region) < KMER:
        raise ValueError(f"region must have at least {KMER} positions, {people.region} has {len(people.region)}")
    inputs = {}
    if positions:
        inputs["logistic regression, known variants"] = baselines.at_positions(people, positions)[0]
    inputs["logistic regression, all variants"] = people.counts()[0].astype(float)
    if not inputs["logistic regression, all variants"].shape[1]:
        raise ValueError(f"region must have variants, at {people.region} nobody differs")
    texts = [people.text(number) for number in range(len(people.names))]
    inputs[f"logistic regression, {KMER}-mers"] = baselines.kmer_counts(texts, KMER)
    return inputs


def summary(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean over the draws, and standard deviation, None for one draw."""
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None


def shown(record: Record, digits: int = 2) -> str:
    """Mean and standard deviation as text."""
    deviation = "" if record.spread is None else f" (s.d. {record.spread:.{digits}f})"
    return f"{record.value:.{digits}f}{deviation}"


def difference(
    model: Sequence[Chances], baseline: Sequence[Chances], people: Sequence[Sequence[int]], *, times: int = 1000
) -> tuple[float, float]:
    """95 % interval of the mean AUC of a model minus that of a baseline on the same draws, in points.

    Args:
        model: Probabilities of the model for each draw.
        baseline: Those of the baseline.
        people: Numbers of the test people of each draw, in the order of these.
        times: Number of times that all of them are drawn again.
    """
    source = np.random.default_rng(0)
    everyone, places = np.unique(np.concatenate(people), return_inverse=True)
    # How often each person is drawn: who is tested in several draws counts alike in all of them.
    drawn = source.multinomial(len(everyone), [1 / len(everyone)] * len(everyone), size=times)
    rows = np.split(places, np.cumsum([len(own) for own in people])[:-1])
    total = np.zeros(times)
    for mine, theirs, own in zip(model, baseline, rows, strict=True):
        weights = drawn[:, own]
        pair = [_areas(said.test, said.test_labels, weights) for said in (mine, theirs)]
        total += (pair[0] - pair[1]) / len(model)
    low, high = np.nanquantile(100 * total, [0.025, 0.975]).tolist()
    return low, high


def _areas(said: NDArray[np.float64], labels: NDArray[np.int64], weights: NDArray[np.int64]) -> NDArray[np.float64]:
    """Areas under the ROC curve for weights of the people (t, n): how often a healthy one is below an ill one, (t,).

    NaN where the weights leave no healthy or no ill person.
    """
    order = np.argsort(said, kind="stable")
    values, ill = said[order], labels[order] == 1
    drawn = weights[:, order]
    healthy = np.pad(np.cumsum(drawn * ~ill, axis=1), ((0, 0), (1, 0)))
    # Ties count half.
    first, last = (np.searchsorted(values, values, side=side) for side in ("left", "right"))
    below = (healthy[:, first] + healthy[:, last]) / 2
    pairs = (drawn * ill).sum(axis=1) * healthy[:, -1]
    with np.errstate(invalid="ignore"):
        return (below * drawn * ill).sum(axis=1) / pairs


def table(records: Sequence[Record]) -> Table:
    """The table to print, a row a model."""
    base = records[0].variant
    title = ", ".join(f"{key} {value}" for key, value in records[0].setting.items())
    printed = Table("", "AUC (%)", "F1 (%)", f"AUC minus {base}'s (95 %)", title=title)
    for name in dict.fromkeys(record.variant for record in records):
        own = {record.metric: record for record in records if record.variant == name}
        interval = own["auc"].interval
        printed.add_row(
            name,
            *(shown(own[metric]) for metric in ("auc", "f1")),
            "" if interval is None else f"{interval[0]:+.1f} to {interval[1]:+.1f}",
        )
    return printed
