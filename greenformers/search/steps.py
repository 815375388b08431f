"""How long recipes were healed, how long a step of it takes, and how many the time that is left pays for."""

from math import exp, log

import numpy as np

from greenformers.search.healing import HURDLES, SHIFTED
from greenformers.search.rounding import Rounding
from greenformers.search.space import Genes
from greenformers.search.surrogate import Surrogate

MOST, SPENT = 20_000, (0.45, 0.9)
"""Most steps of healing in full, and the shares of the time left that they are to take, one after the other: the second
has no fewer steps than the first."""


class Steps:
    """The steps of healing of a search.

    Args:
        rounding: What is healed alike.
        seconds: Seconds that the search may take.
    """

    def __init__(self, rounding: Rounding, seconds: float) -> None:
        self._rounding, self._space, self._trials = rounding, rounding.space, rounding.trials
        self._whole = seconds
        self._learned: dict[Genes, float] = {}  # seconds of a step, by which those of others are foreseen
        self._counted: tuple[tuple[int, float], dict[Genes, float]] | None = None

    def parts(self, genes: Genes, steps: int) -> tuple[int, ...]:
        """The steps of healing one after the other: what was healed in full is healed on, for those that are missing.

        Of MiniLM-L6 in 4 layers pruned to 0.5, 2,600 steps kept 98.87 % in an hour that was to keep 99 %, and the time
        that was left was too short for more steps from the beginning.
        """
        full = [t.steps for t in self._rounding.alike(genes) if self._trials.judged(t.genes, t.steps)]
        before = max((own for own in full if HURDLES[-1] < own < steps), default=0)
        return (*self.parts(genes, before), steps - before) if before else (steps,)

    def in_full(self, genes: Genes) -> int:
        """Steps for which a recipe was healed in full, and from which it is healed on; 0 where it was not."""
        full = [t.steps for t in self._rounding.alike(genes) if t.refused is None]
        return max((own for own in full if own > HURDLES[-1]), default=0)

    def affordable(self, genes: Genes, number: int = len(SPENT) - 1) -> int:
        """Steps of healing that are paid for by the time left, in whole hundreds: all of it, or a part in full.

        Args:
            genes: The recipe.
            number: How many parts were healed in full before.
        """
        left = SPENT[min(number, len(SPENT) - 1)] * (self._whole - self._trials.seconds)
        left -= next((trial.seconds for trial in self._trials.done(0) if trial.genes == genes), 0.0)
        each = self._seconds(genes)
        return min(MOST, 100 * int(left / each / 100)) if each and left > 0 else 0

    def _seconds(self, genes: Genes) -> float | None:
        """Seconds of a step of healing: those of the recipe itself, if it was healed, else what its changes tell.

        Four layers of six are healed in half the time of six, so that as many seconds are twice the steps.
        """
        seen, own = self._seen(), self._rounding.before(genes)
        if own in seen or not seen:
            return seen.get(own)
        if len(seen) <= SHIFTED:
            return float(np.median([*seen.values()]))
        if seen != self._learned:
            self._learned = seen
            self._surrogate = Surrogate([self._space.strengths(row) for row in seen], [log(x) for x in seen.values()])
        (expected,), _ = self._surrogate.predict([self._space.strengths(own)])
        return float(np.clip(exp(expected), min(seen.values()), max(seen.values())))

    def _seen(self) -> dict[Genes, float]:
        """Seconds of a step by what was healed, of the longest healing; the same until another trial ends."""
        ended = len(self._trials.seen), self._trials.seconds
        if self._counted is None or self._counted[0] != ended:
            self._counted = ended, self._count()
        return self._counted[1]

    def _count(self) -> dict[Genes, float]:
        fixed = {trial.genes: trial.seconds for trial in self._trials.done(0)}
        # What was measured once, for the first recipe with a change, is not paid for again where that one is healed.
        usual = float(np.median([*fixed.values()])) if fixed else 0.0
        first = {(self._rounding.before(t.genes), t.steps): t for t in reversed(self._trials.done()) if t.steps}
        seen = {}
        for (genes, steps), trial in sorted(first.items(), key=lambda row: row[0][1]):
            training = trial.training
            if training is None:  # what was made in full, say
                training = max(trial.seconds / 10, trial.seconds - min(usual, fixed.get(trial.genes, usual)))
            part = self.parts(trial.genes, steps)[-1]  # what is healed on takes the seconds of that alone
            seen[genes] = max(1e-6, training) / part
        return seen
