"""What healing brings back of a recipe's loss, learned from trials.

    log lost(s, n) = log lost(s, 0) + level(s) + fall(s, lost(s, AT)) log2(n / AT)

for a recipe of strengths s after n steps, with a fall that is `LATER` times as steep beyond AT, or as steep as was seen
where recipes were healed for long. What keeps its width and loses layers, say, comes back sooner than what was pruned,
so that the level is a function of the recipe as soon as a few were healed. What has lost much falls more slowly, as it
has too few weights left to come back.
"""

from collections.abc import Sequence
from math import exp, log

import numpy as np

from greenformers.search.bound import EPSILON
from greenformers.search.space import Genes, Space
from greenformers.search.surrogate import Surrogate
from greenformers.search.trials import Trials

HURDLES = (100, 300)
"""Steps of healing at which only those above the mean go on. After 50 steps what keeps its layers is worse than before:
MiniLM-L6 pruned to 0.3, low rank 0.8, 97.3 % of 98.7, at a rate of 1.1e-4 as at 5e-4; after 200 at 2.2e-4 98.3 %."""

FALL, NEAR, TRUSTED = -0.2, 0.02, 2.0
"""The change of the logarithm of a loss of `NEAR` by twice the steps, as long as no healing was seen, and as how many
recipes that were seen it counts."""

SLOPE, BETWEEN = 0.06, (0.25, 2.0)
"""How much less the logarithm falls where the loss is twice as much, and between how many times `FALL` it does. From
100 to 300 steps recipes of MiniLM-L6 fell by 0.24 a doubling from a loss of 1.3 % (4 of 6 layers), by 0.19 from 2.4 %
(4 pruned to 0.6), 0.18 and 0.20 from 2.9 % (4 pruned to 0.5, 3 layers), 0.16 from 3.8 and 4.5 % (3 pruned to 0.6 and
0.5), 0.12 from 4.3 % (2 layers) and 0.08 from 7.7 % (a narrow student of 2)."""

LATER = 1.1
"""How many times as steep the loss falls beyond AT steps, as short trainings end before the rate was high for long,
until a search has seen it; it counts as `TRUSTED` recipes then. Of MiniLM-L6 it was 0.96 times from 300 to 5,100 steps
(3 layers), 1.11 times to 2,600 (4 layers pruned to 0.5) and 1.17 times to 6,900 (3 layers pruned to 0.6)."""

MOST_LATER = 2.0
"""The most that is believed of one recipe."""

KEPT, AT, BELIEVED = 0.43, 300, 3.0
"""The share of its loss that a recipe has left after so many steps (docs/studies/heal-sentence-encoder.md), and the
weight of that beside what is seen: a trial healed for n steps has the weight log2(n / 25)."""

SHIFTED = 2
"""More healed recipes than these tell the level as a function of the recipe, not as one number: three changes that were
healed alone, of which one comes back soon and another hardly."""

UNSURE = 0.3
"""Standard deviation of the logarithm of the loss after long healing from what was expected. In four hours of search of
MiniLM-L6 losses of 0.70, 0.75, 0.78 and 1.20 % came where 1.0, 1.0, 0.78 and 1.0 % were expected; in a fifth 1.21 %
where 1.00 % were, by a fall 1.6 times as steep as the first."""


class Healing:
    """What healing brings back.

    Args:
        space: The space of the recipes.
        trials: Trials, of which those count that were tried without healing too.
    """

    def __init__(self, space: Space, trials: Trials) -> None:
        self._space = space
        lower, upper = HURDLES
        self._off: dict[Genes, float] = {}  # by how much each recipe's fall is off what its loss tells
        for trial in trials.done(upper):
            early = trials.of(trial.genes, lower)
            if early is not None and early.refused is None:
                fall = (logged(trial.lost) - logged(early.lost)) / log(upper / lower, 2)
                self._off[trial.genes] = fall - _by_loss(exp((logged(trial.lost) + logged(early.lost)) / 2))
        seen = list(self._off.values())
        self._usual = float(np.average([0.0, *seen], weights=[TRUSTED, *(1.0 for _ in seen)]))
        self._later = self._seen_later(trials)
        rows, levels, weights = list[Genes](), [log(KEPT)], [BELIEVED]
        for trial in trials.done():
            before = trials.of(trial.genes, 0)
            if trial.steps and before is not None and before.refused is None:
                rows.append(trial.genes)
                levels.append(logged(trial.lost) - logged(before.lost) - self.change(AT, trial.steps, lost=trial.lost))
                weights.append(max(0.0, log(trial.steps / 25, 2)))
        self._level = float(np.average(levels, weights=weights))
        self._shift = None
        if len(set(rows)) > SHIFTED:
            self._shift = Surrogate([space.strengths(row) for row in rows], [x - self._level for x in levels[1:]])

    def _seen_later(self, trials: Trials) -> float:
        """How many times as steep the loss falls beyond AT steps, of what was healed for longer than the hurdles."""
        seen = []
        for trial in trials.done():
            others = [t for t in trials.done() if t.genes == trial.genes and HURDLES[-1] <= t.steps < trial.steps]
            if others:
                before = max(others, key=lambda other: other.steps)
                fall = (logged(trial.lost) - logged(before.lost)) / log(trial.steps / before.steps, 2)
                usual = min(self.fall(lost=before.lost), BETWEEN[0] * FALL)
                seen.append(min(MOST_LATER, max(0.0, fall / usual)))
        return float(np.average([LATER, *seen], weights=[TRUSTED, *(1.0 for _ in seen)]))

    def fall(self, genes: Genes | None = None, lost: float = NEAR) -> float:
        """The change of the logarithm of the loss by twice the steps, up to AT; at most 0.

        What it is beside that of other recipes of such a loss is half of the recipe, if that was seen.

        Args:
            genes: The recipe; None for any.
            lost: The loss.
        """
        own = self._usual if genes is None else self._off.get(genes, self._usual)
        return min(0.0, _by_loss(lost) + (self._usual + own) / 2)

    def change(self, before: int, after: int, genes: Genes | None = None, lost: float = NEAR) -> float:
        """The change of the logarithm of the loss from so many steps to so many.

        Args:
            before: Steps, at least 1.
            after: Steps, at least 1.
            genes: The recipe; None for any.
            lost: The loss after so many steps as are known.
        """
        return self.fall(genes, lost) * (self._doublings(after) - self._doublings(before))

    def left(self, rows: Sequence[Genes], steps: int, lost: Sequence[float] | None = None) -> list[float]:
        """The logarithm of the share of its loss that each of some recipes has left after so many steps.

        Args:
            rows: The recipes.
            steps: The steps.
            lost: The loss of each before healing; None where it does not count.
        """
        shifts = [0.0] * len(rows)
        if self._shift is not None:
            shifts = self._shift.predict([self._space.strengths(row) for row in rows])[0].tolist()
        levels = [self._level + shift for shift in shifts]
        then = [NEAR] * len(rows) if lost is None else [x * exp(level) for x, level in zip(lost, levels, strict=True)]
        return [level + self.change(AT, steps, lost=x) for level, x in zip(levels, then, strict=True)]

    def _doublings(self, steps: int) -> float:
        """Doublings from AT steps on, those beyond it as many times as they count."""
        doublings = log(steps / AT, 2)
        return doublings * (self._later if doublings > 0 else 1)


def _by_loss(lost: float) -> float:
    """The change of the logarithm of a loss by twice the steps, as far as the loss tells."""
    flat, steep = (share * FALL for share in BETWEEN)
    return min(flat, max(steep, FALL + SLOPE * log((max(lost, 0) + EPSILON) / (NEAR + EPSILON), 2)))


def logged(lost: float) -> float:
    """The logarithm of a loss, of which none and a gain are a small one."""
    return log(max(lost, 0) + EPSILON)
