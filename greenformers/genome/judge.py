"""The fine-tuned network beside what it must beat, on the same draws of people. Thesis, table 5.2."""

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
    settings: Finetuning, found: Sequence[Chances], features: Mapping[str, Any], people: People
) -> list[Record]:
    """Means over the draws, standard deviations as spreads; every model on the same people.

    The difference in AUC to the network has a 95 % interval: the test people of each draw are drawn again, with
    replacement, the same for both.

    Args:
        settings: of the network.
        found: what it says, of each draw.
        features: what the others are given, see `features`.
        people: everybody.
    """
    first, shares = settings.split, (settings.valid_share, settings.test_share)
    draws = [people.splits(first + draw, *shares) for draw in range(len(found))]
    models: dict[str, Sequence[Chances]] = {settings.variant: found}
    for name, values in features.items():
        models[name] = [baselines.regression(values, people.labels, draw) for draw in draws]
    setting = {"region": str(people.region), "people": len(people.names), "draws": len(found)}
    made = []
    for name, said in models.items():
        scores = [one.scores() for one in said]
        for metric in ("auc", "f1"):
            mean, deviation = summary([one[metric] for one in scores])
            interval = list(difference(said, found)) if metric == "auc" and said is not found else None
            made.append(
                Record.of(
                    metric, mean, benchmark="genome_risk", variant=name, setting=setting, spread=deviation,
                    to=None if interval is None else settings.variant, interval=interval,
                )
            )  # fmt: skip
    return made


def features(people: People, known: Sequence[int] = ()) -> dict[str, Any]:
    """What logistic regression is given, by the name of the model.

    Args:
        people: everybody.
        known: positions of variants for a baseline of their own.

    Raises:
        ValueError: nobody differs, or not at the known positions, or the region is too short for k-mers.
    """
    if len(people.region) < KMER:
        raise ValueError(f"region must have at least {KMER} positions, {people.region} has {len(people.region)}")
    found = {}
    if known:
        found["logistic regression, known variants"] = baselines.at_positions(people, known)[0]
    found["logistic regression, all variants"] = people.counts()[0].astype(float)
    if not found["logistic regression, all variants"].shape[1]:
        raise ValueError(f"region must have variants, at {people.region} nobody differs")
    texts = [people.text(number) for number in range(len(people.names))]
    found[f"logistic regression, {KMER}-mers"] = baselines.kmer_counts(texts, KMER)
    return found


def summary(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean over the draws, and standard deviation; None of one draw."""
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None


def shown(record: Record, digits: int = 2) -> str:
    """Mean and standard deviation as text."""
    deviation = "" if record.spread is None else f" (s.d. {record.spread:.{digits}f})"
    return f"{record.value:.{digits}f}{deviation}"


def difference(one: Sequence[Chances], other: Sequence[Chances], *, times: int = 1000) -> tuple[float, float]:
    """95 % interval of how much higher the mean AUC of one model is than another's on the same draws, in points."""
    source = np.random.default_rng(0)
    total = np.zeros(times)
    for mine, theirs in zip(one, other, strict=True):
        count = len(mine.test)
        # How often each person is drawn.
        weights = source.multinomial(count, [1 / count] * count, size=times)
        pair = [_areas(said.test, said.test_labels, weights) for said in (mine, theirs)]
        total += (pair[0] - pair[1]) / len(one)
    low, high = np.nanquantile(100 * total, [0.025, 0.975]).tolist()
    return low, high


def _areas(said: NDArray[np.float64], labels: NDArray[np.int64], weights: NDArray[np.int64]) -> NDArray[np.float64]:
    """Areas under the ROC curve for weights of the people (t, n): how often a healthy one is below an ill one, (t,).

    Not a number where the weights leave no healthy or no ill one.
    """
    order = np.argsort(said, kind="stable")
    values, ill = said[order], labels[order] == 1
    drawn = weights[:, order]
    healthy = np.pad(np.cumsum(drawn * ~ill, axis=1), ((0, 0), (1, 0)))
    # Those as high count half.
    first, last = (np.searchsorted(values, values, side=side) for side in ("left", "right"))
    below = (healthy[:, first] + healthy[:, last]) / 2
    pairs = (drawn * ill).sum(axis=1) * healthy[:, -1]
    with np.errstate(invalid="ignore"):
        return (below * drawn * ill).sum(axis=1) / pairs


def table(made: Sequence[Record]) -> Table:
    """A row a model."""
    base = made[0].variant
    title = ", ".join(f"{key} {value}" for key, value in made[0].setting.items())
    made_of = Table("", "AUC (%)", "F1 (%)", f"AUC minus {base}'s (95 %)", title=title)
    for name in dict.fromkeys(record.variant for record in made):
        own = {record.metric: record for record in made if record.variant == name}
        apart = own["auc"].interval
        made_of.add_row(
            name,
            *(shown(own[one]) for one in ("auc", "f1")),
            "" if apart is None else f"{apart[0]:+.1f} to {apart[1]:+.1f}",
        )
    return made_of
