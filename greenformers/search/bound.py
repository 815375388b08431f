"""What is looked for: the fastest recipe that loses no more than a share, or the one that loses least at a speed."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log
from statistics import NormalDist

from greenformers.search.trials import Trial

EPSILON = 1e-3
"""A loss that is told apart from none."""

WEIGHT = 0.5, 4.0
"""What it costs to be beyond a bound of loss or of speed, of the logarithms: twice the loss that is allowed costs as
much as a speed 1.4 times less."""

NOISE = 0.03
"""Shares of a speed that timing does not tell apart."""

STRICT = 4.0
"""How much more it costs to be beyond what is aimed at, where what healing brings back is counted already."""


HOPELESS = 0.05
"""Least chance to keep to a bound that is worth minutes."""


@dataclass(frozen=True)
class Bound:
    """What the best recipe must keep to; exactly one of the two is given.

    Attributes:
        lose: Greatest share of the quality that may be lost: the fastest recipe is looked for.
        faster: Least speed-up: the recipe that loses least is looked for.
    """

    lose: float | None = None
    faster: float | None = None

    def __post_init__(self) -> None:
        if (self.lose is None) == (self.faster is None):
            raise ValueError("a bound is a loss or a speed-up, not both")
        if self.lose is not None and not 0 <= self.lose < 1:
            raise ValueError(f"lose must be at least 0 % and below 100 %, got {self.lose:.4g}")
        if self.faster is not None and not 1 < self.faster < inf:
            raise ValueError(f"faster must be above 1x and finite, got {self.faster:.4g}x")

    def met_by(self, trial: Trial) -> bool:
        """Whether a trial keeps to the bound."""
        return trial.lost <= self.lose if self.lose is not None else trial.speed >= (self.faster or 1)

    def merit(self, speed: float, lost: float, strict: float = 1.0) -> float:
        """How good a recipe is: what is asked for, less `strict` times what it costs to be beyond the bound."""
        log_lost = log(max(lost, 0) + EPSILON)
        if self.lose is not None:
            return log(speed) - strict * WEIGHT[0] * max(0.0, log_lost - log(self.lose + EPSILON))
        return -log_lost - strict * WEIGHT[1] * max(0.0, log(self.faster or 1) - log(speed))

    def nearest(self, trials: Sequence[Trial]) -> Trial:
        """The best of some trials that keep to the bound; where none does, the one that is nearest to it.

        Of those that are as fast as the fastest, but for noise, that is the one that loses least. A recipe has one
        speed, however long it was healed: of its trials, that is the one that loses least.
        """
        fit = [trial for trial in trials if self.met_by(trial)]
        if self.lose is not None:
            return max(fit, key=lambda trial: (trial.speed, -trial.lost)) if fit else min(trials, key=_loses_least)
        fastest = max(trial.speed for trial in trials)
        return min(fit or [trial for trial in trials if trial.speed >= (1 - NOISE) * fastest], key=_loses_least)

    def hoped(self, best: Trial, expected: Sequence[Trial], unsure: float) -> Trial:
        """What is worth most to be made of some trials that are expected; the best so far, where nothing is.

        Under a bound of loss that is the expected improvement: the gain in the logarithm of the speed by the chance
        that the bound is kept (Schonlau 1998). What is expected to be just beyond it may be better than thought. Where
        nothing keeps to it and nothing has a chance, it is what is expected to be nearest.

        Args:
            best: The best so far.
            expected: Trials with the loss that is expected of them.
            unsure: Standard deviation of the logarithm of that loss.
        """
        if self.lose is None:
            chosen = self.nearest([best, *expected])
            return best if self.met_by(best) and chosen.lost >= best.lost else chosen
        slowest, most = best.speed if self.met_by(best) else 1.0, log(self.lose + EPSILON)
        chosen, greatest = best, 0.0
        for trial in expected:
            chance = NormalDist().cdf((most - log(max(trial.lost, 0) + EPSILON)) / unsure)
            gain = chance * log(trial.speed / slowest)
            if chance >= HOPELESS and gain > greatest:
                chosen, greatest = trial, gain
        return chosen if greatest or self.met_by(best) else self.nearest([best, *expected])


def _loses_least(trial: Trial) -> tuple[float, float]:
    """The order of trials by their loss; of those that lose the same, as classifiers often do, the fastest is first."""
    return trial.lost, -trial.speed
