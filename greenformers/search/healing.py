"""What healing brings back of a recipe's loss, learned from trials.

    log lost(s, n) = log lost(s, 0) + level(s) + fall(s) log2(n / AT)

for a recipe of strengths s after n steps, with a fall that is `LATER` times as steep beyond AT, or as steep as was seen
where recipes were healed for long. What keeps its width and loses layers, say, comes back sooner than what was pruned,
so that the level is a function of the recipe as soon as a few were healed.
"""

from math import log

import numpy as np

from greenformers.search.bound import EPSILON
from greenformers.search.space import Genes, Space
from greenformers.search.surrogate import Surrogate
from greenformers.search.trials import Trials

HURDLES = (100, 300)
"""Steps of healing at which only those above the mean go on. After 50 steps what keeps its layers is worse than before:
MiniLM-L6 pruned to 0.3, low rank 0.8, 97.3 % of 98.7, at a rate of 1.1e-4 as at 5e-4; after 200 at 2.2e-4 98.3 %."""

FALL, TRUSTED = -0.2, 2.0
"""The change of the logarithm of the loss by twice the steps, as long as no healing was seen, and as how many recipes
that were seen it counts. What a search heals twice is often pruned alone, which falls by 0.13 to 0.16; of four layers
of six it was 0.19 to 0.23."""

LATER = 1.3
"""How many times as steep the loss falls beyond AT steps, as short trainings end before the rate was high for long,
until a search has seen it; it counts as `TRUSTED` recipes then. Of MiniLM-L6 it was 1.2 times from 300 to 6,900 steps
(3 layers pruned to 0.6) and to 900 (all 6 to 0.5, in OpenVINO), 1.4 to 1,300 (all 6 to 0.5), and by hand 1.7 to 1,800
(4 layers to 0.6)."""

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
where 1.00 % were, by a fall 1.6 times as steep as the first, and 1.22 % are by `LATER`."""


class Healing:
    """What healing brings back.

    Args:
        space: The space of the recipes.
        trials: Trials, of which those count that were tried without healing too.
    """

    def __init__(self, space: Space, trials: Trials) -> None:
        self._space = space
        lower, upper = HURDLES
        self._falls: dict[Genes, float] = {}
        for trial in trials.done(upper):
            early = trials.of(trial.genes, lower)
            if early is not None:
                self._falls[trial.genes] = (logged(trial.lost) - logged(early.lost)) / log(upper / lower, 2)
        seen = list(self._falls.values())
        self._usual = float(np.average([FALL, *seen], weights=[TRUSTED, *(1.0 for _ in seen)]))
        self._later = self._seen_later(trials)
        rows, levels, weights = list[Genes](), [log(KEPT)], [BELIEVED]
        for trial in trials.done():
            before = trials.of(trial.genes, 0)
            if trial.steps and before is not None and before.refused is None:
                rows.append(trial.genes)
                levels.append(logged(trial.lost) - logged(before.lost) - self.change(AT, trial.steps))
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
                seen.append(min(MOST_LATER, max(0.0, fall / min(self._usual, FALL / 2))))
        return float(np.average([LATER, *seen], weights=[TRUSTED, *(1.0 for _ in seen)]))

    def fall(self, genes: Genes | None = None) -> float:
        """The change of the logarithm of the loss by twice the steps, up to AT; at most 0. Half of it is of the recipe.

        Args:
            genes: The recipe; None for any.
        """
        own = self._usual if genes is None else self._falls.get(genes, self._usual)
        return min(0.0, (self._usual + own) / 2)

    def change(self, before: int, after: int, genes: Genes | None = None) -> float:
        """The change of the logarithm of the loss from so many steps to so many.

        Args:
            before: Steps, at least 1.
            after: Steps, at least 1.
            genes: The recipe; None for any.
        """
        return self.fall(genes) * (self._doublings(after) - self._doublings(before))

    def left(self, rows: list[Genes], steps: int) -> list[float]:
        """The logarithm of the share of its loss that each of some recipes has left after so many steps."""
        shifts = [0.0] * len(rows)
        if self._shift is not None:
            shifts = self._shift.predict([self._space.strengths(row) for row in rows])[0].tolist()
        return [self._level + shift + self.change(AT, steps) for shift in shifts]

    def _doublings(self, steps: int) -> float:
        """Doublings from AT steps on, those beyond it as many times as they count."""
        doublings = log(steps / AT, 2)
        return doublings * (self._later if doublings > 0 else 1)


def logged(lost: float) -> float:
    """The logarithm of a loss, of which none and a gain are a small one."""
    return log(max(lost, 0) + EPSILON)
