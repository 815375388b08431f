"""How much a recipe that was not tried will lose before it is healed, learned from the trials.

Errors that have nothing to do with each other add up in their squares, and so do the losses of changes:

    root(s) = sqrt(sum_i lost_i(s_i)) + y(s)

with the loss lost_i of change i alone, between the settings that were tried alone, and what the sum is off by, the
second-order terms y of `Surrogate`. The root of a loss has an error as large for small losses as for large ones.

In two hours of search of MiniLM-L6, each recipe of several changes foreseen by the trials before it, the root was off
by 0.008 and 0.010 (root of the mean square), and by 0.045 and 0.044 by second-order terms alone.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from greenformers.search.surrogate import Surrogate

LEAST, SHARE = 0.15, 0.04
"""The least that sums are taken to be off by, as a share of the mean root; and what each root is off by besides."""


class Losses:
    """Roots of losses by the strengths of changes.

    Args:
        strengths: Strengths of each trial (trials, changes).
        lost: Share of the quality that each lost (trials,); below 0 where it gained.
    """

    def __init__(self, strengths: Sequence[Sequence[float]], lost: Sequence[float]) -> None:
        S, roots = np.asarray(strengths, dtype=np.float64), np.sqrt(np.maximum(lost, 0.0))
        self._alone = [_alone(S, roots, place) for place in range(S.shape[1])]
        least = LEAST * roots[roots > 0].mean() if (roots > 0).any() else 0.0
        self._rest = Surrogate(strengths, (roots - self._sums(S)).tolist(), centre=0.0, least=least)

    def predict(self, strengths: Sequence[Sequence[float]]) -> tuple[Any, Any]:
        """Roots of the losses of some recipes, and standard deviations of what will be seen from them."""
        sums = self._sums(np.asarray(strengths, dtype=np.float64))
        rest, spread = self._rest.predict(strengths)
        roots = np.maximum(0.0, sums + rest)
        return roots, np.sqrt(spread**2 + self._rest.noise**2 + (SHARE * roots) ** 2)

    def _sums(self, S: Any) -> Any:
        """Roots of the sums of the losses of the changes alone."""
        return np.sqrt(sum(np.interp(S[:, place], *curve) ** 2 for place, curve in enumerate(self._alone)))


def _alone(S: Any, roots: Any, place: int) -> tuple[list[float], list[float]]:
    """The strengths with which a change was tried alone, from none on, and the roots of what it lost."""
    points = {0.0: 0.0}
    for row, root in zip(S, roots, strict=True):
        if row[place] > 0 and np.count_nonzero(row) == 1:
            points[float(row[place])] = float(root)
    return sorted(points), [points[strength] for strength in sorted(points)]
