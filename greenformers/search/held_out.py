"""How well a search foresees recipes: those that it tried, predicted from the trials of others."""

import random
from statistics import median
from typing import NamedTuple

from greenformers.search.propose import Predictions
from greenformers.search.space import Space
from greenformers.search.trials import Trials

PARTS = 8
"""Parts of the recipes, each of which is predicted from the others; and the least number of recipes."""


class Errors(NamedTuple):
    """Median errors of what is predicted of recipes without healing.

    Attributes:
        recipes: Number of recipes.
        time: Error of the time, as a share of that measured.
        lost: Error of the share of the quality that is lost.
    """

    recipes: int
    time: float
    lost: float


def errors_of(space: Space, trials: Trials) -> Errors | None:
    """How far predictions of the recipes that were tried without healing are off; None for fewer than `PARTS`.

    Args:
        space: The space of the recipes.
        trials: The trials of the search.
    """
    tried = trials.done(0)
    if len(tried) < PARTS:
        return None
    random.Random(0).shuffle(tried)  # as they were tried, those of one change would be held out together
    times, losses = [], []
    for part in range(PARTS):
        held_out = tried[part::PARTS]
        rows = [trial.genes for trial in held_out]
        predictions = Predictions(space, trials, 0, without=rows).of(rows)
        for trial, predicted in zip(held_out, predictions, strict=True):
            times.append(abs(trial.speed / predicted.speed - 1))
            losses.append(abs(predicted.lost() - trial.lost))
    return Errors(len(tried), median(times), median(losses))
