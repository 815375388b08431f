"""Which networks may be fast enough, as far as those tell that were timed: slow ones are not worth the timing.

    log speed(genes) = mean + sum over parts of w[part, value],    w = (X^T X + RIDGE I)^-1 X^T (log speed - mean)

with X one-hot in the values of the parts. How far that is off tell the errors at networks that are left out of the fit.
"""

from collections.abc import Callable, Sequence
from math import log

import numpy as np

from greenformers.search.space import Genes
from greenformers.search.trials import Trial

LEARNT = 10
"""Networks that are timed before any is thought to be too slow."""

RIDGE, BELOW = 0.3, 0.4
"""The penalty of the weights, and how far below what is enough, in standard deviations of the errors, a network is
timed nevertheless. Of 69 networks by chance around two layers of width 64, of which 16 were twice as fast, half of
these and a fifth of the others would have been timed."""


def hopeful(trials: Sequence[Trial], counts: Sequence[int], least: float) -> Callable[[Genes], bool]:
    """A function that says whether a network may be fast enough.

    Args:
        trials: Trials, those among them that were timed and found too slow.
        counts: Number of values of each part.
        least: How many times as fast a network is to be.
    """
    timed = {trial.genes: trial.speed for trial in trials if trial.speed > 0}
    if len(timed) < LEARNT:
        return lambda _: True
    starts = np.cumsum([0, *counts[:-1]])
    X = np.zeros((len(timed), sum(counts)))
    for row, genes in enumerate(timed):
        X[row, starts + np.array(genes)] = 1
    y = np.log(list(timed.values()))
    mean = y.mean()
    solved = np.linalg.solve(X.T @ X + RIDGE * np.eye(X.shape[1]), X.T)
    w, hat = solved @ (y - mean), X @ solved
    off = np.sqrt((((y - mean - X @ w) / (1 - np.diag(hat))) ** 2).mean())
    enough = log(least) - mean - BELOW * off
    return lambda genes: bool(w[starts + np.array(genes)].sum() >= enough)
