"""Changes that round weights and lose hardly anything by it: they come behind healing, which knows nothing of them.

What was healed so serves the recipe as it is, and every recipe that only rounds its weights in addition.
"""

from dataclasses import dataclass, field, replace
from itertools import product

from greenformers.search.bound import Bound
from greenformers.search.propose import Predictions
from greenformers.search.space import Genes, Space
from greenformers.search.trials import Trial, Trials

LATE = 0.002
"""The most of the quality that a change that rounds may lose alone to be applied behind healing, whatever the bound: a
search that goes on with another is to find recipes as they were made. A step of healing that rounds weights takes 1.45
times as long. Three layers of MiniLM-L6, healed for 7,000 steps and then rounded to int8, keep 99.30 % where they keep
99.32 % as they are; int8 alone loses 0.04 % in OpenVINO and 0.13 % in torch."""

SURE = 0.1
"""Standard deviation of the logarithm of a loss from what was expected, where a recipe only rounds other weights."""


@dataclass(frozen=True)
class Rounding:
    """Which changes of a search round weights behind healing.

    Attributes:
        space: The recipes.
        trials: What was tried.
        bound: What the best recipe must keep to.
    """

    space: Space
    trials: Trials
    bound: Bound
    _late: dict[int, bool] = field(default_factory=dict, repr=False)  # what is known of the places of changes

    def before(self, genes: Genes) -> Genes:
        """A recipe without what rounds weights behind healing."""
        return tuple(0 if self._is_late(place, gene) else gene for place, gene in enumerate(genes))

    def alike(self, genes: Genes) -> list[Trial]:
        """Trials of a recipe, and of those that are healed as it is."""
        before = self.before(genes)
        return [trial for trial in self.trials.seen if self.before(trial.genes) == before]

    def other(self, genes: Genes, steps: int) -> Genes | None:
        """A recipe that rounds other weights of what was healed, where it may well be better than the best so far.

        Args:
            genes: The recipe that was healed.
            steps: Steps for which it was.
        """
        trial = self.trials.of(genes, steps)
        if trial is None or trial.refused is not None:
            return None
        refused = {trial.genes for trial in self.trials.seen if trial.refused is not None}
        before = enumerate(self.before(genes))
        choices = [(0, 1) if self._is_late(place, 1) else (gene,) for place, gene in before]
        rows = [row for row in product(*choices) if any(row) and self.space.legal(row) and row not in refused]
        rows = [row for row in rows if self.trials.of(row, steps) is None]
        as_is, *predicted = Predictions(self.space, self.trials, 0).of([genes, *rows])
        speeds = [trial.speed * prediction.speed / as_is.speed for prediction in predicted]
        losses = [trial.lost + prediction.lost() - as_is.lost() for prediction in predicted]
        figures = zip(rows, speeds, losses, strict=True)
        expected = [replace(trial, genes=row, speed=speed, lost=lost) for row, speed, lost in figures]
        chosen = self.bound.hoped(self.bound.nearest(self.trials.done()), expected, SURE)
        return chosen.genes if chosen in expected else None

    def _is_late(self, place: int, gene: int) -> bool:
        """Whether a change rounds weights behind healing, by what it loses alone, which a search asks for first."""
        slot = self.space.slots[place]
        if not gene or not slot[0].freezes or len(slot) > 1:  # of several settings not all are tried alone
            return False
        if place not in self._late:
            alone = self.trials.of(tuple(int(at == place) for at in range(len(self.space.slots))), 0)
            if alone is None:
                return False
            self._late[place] = alone.refused is None and alone.lost <= LATE
        return self._late[place]
