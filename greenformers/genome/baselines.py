"""Baselines: logistic regression on known variants, on all, and on k-mer counts. Cahyawijaya 2021, 5.3.1."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from greenformers._extras import needed
from greenformers.genome.people import People
from greenformers.genome.risk import Chances, scores

if TYPE_CHECKING:
    from numpy.typing import NDArray

STRENGTHS = (0.001, 0.01, 0.1, 1.0, 10.0)
"""Inverse strengths of the ridge penalty, one of which is chosen on the validation people."""


@dataclass(frozen=True)
class Odds:
    """The odds ratio of a copy of a symbol.

    Attributes:
        position: Position in the genome, from 1.
        symbol: The symbol, as in `People.counts`.
        ratio: Odds ratio of one copy.
        low: Lower end of its 95 % interval.
        high: Upper end of its 95 % interval.
    """

    position: int
    symbol: str
    ratio: float
    low: float
    high: float


def at_positions(people: People, positions: Sequence[int]) -> tuple[NDArray[np.float64], list[tuple[int, str]]]:
    """The counts of `People.counts` at some positions, (people, features).

    Raises:
        ValueError: At none of the positions do people differ.
    """
    counts, features = people.counts()
    columns = [number for number, (position, _) in enumerate(features) if position in set(positions)]
    if not columns:
        raise ValueError(f"positions must have variants, none of {', '.join(map(str, positions))} has")
    names = [features[number] for number in columns]
    if missing := sorted(set(positions) - {position for position, _ in names}):
        warnings.warn(
            f"at {people.region} nobody differs at {', '.join(map(str, missing))}, or they are not in it: the known "
            "variants are without them",
            stacklevel=2,
        )
    return counts[:, columns].astype(float), names


def kmer_counts(texts: Sequence[str], k: int) -> NDArray[np.float64]:
    """Counts of each k-mer that a text has, as logarithms of 1 + count, (texts, k-mers)."""
    needed("counts of k-mers", "genome", "scikit-learn", "sklearn")
    from sklearn.feature_extraction.text import CountVectorizer

    counts = CountVectorizer(analyzer="char", ngram_range=(k, k), lowercase=False).fit_transform(texts)
    return np.log1p(counts.astype(float))


def regression(features: Any, labels: NDArray[np.int64], splits: dict[str, list[int]]) -> Chances:
    """Probabilities of a logistic regression, whose ridge penalty is chosen on the validation people."""
    needed("logistic regression", "genome", "scikit-learn", "sklearn")
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import MaxAbsScaler

    scaled = MaxAbsScaler().fit_transform(features)
    train, valid, test = (scaled[splits[name]] for name in ("train", "valid", "test"))
    models = [
        LogisticRegression(C=strength, max_iter=5000).fit(train, labels[splits["train"]]) for strength in STRENGTHS
    ]
    valid_labels, test_labels = labels[splits["valid"]], labels[splits["test"]]
    best = max(models, key=lambda model: scores(model.predict_proba(valid)[:, 1], valid_labels)["auc"])
    return Chances(best.predict_proba(valid)[:, 1], valid_labels, best.predict_proba(test)[:, 1], test_labels)


def odds_ratios(
    features: NDArray[np.float64], names: Sequence[tuple[int, str]], labels: NDArray[np.int64]
) -> list[Odds]:
    """Odds ratios of every feature in one logistic regression without a penalty, with Wald intervals."""
    needed("logistic regression", "genome", "scikit-learn", "sklearn")
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model = LogisticRegression(C=np.inf, max_iter=5000).fit(features, labels)
    design = np.column_stack([np.ones(len(features)), features])
    chances = model.predict_proba(features)[:, 1]
    # Inverse of the observed information: the variances of the coefficients.
    covariance = np.linalg.inv(design.T @ (design * (chances * (1 - chances))[:, None]))
    ratios = []
    for (position, symbol), weight, variance in zip(names, model.coef_[0], covariance.diagonal()[1:], strict=True):
        half = 1.959964 * math.sqrt(variance)
        ratios.append(Odds(position, symbol, *(math.exp(weight + shift) for shift in (0.0, -half, half))))
    return ratios
