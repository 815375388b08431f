"""Trials one after the other: each is made once, kept on disk, and counted with the time that it took."""

from collections.abc import Callable
from dataclasses import replace
from time import monotonic

from greenformers.search.space import Genes
from greenformers.search.trials import Trial, Trials


class Tries:
    """What makes the trials of a search.

    Args:
        trials: What was tried before, if anything; trials are added.
        told: Function that is called with each trial that ended.
        clock: Function that gives the time in seconds.
    """

    def __init__(
        self, trials: Trials, told: Callable[[Trial], None] = lambda _: None, clock: Callable[[], float] = monotonic
    ) -> None:
        self.trials, self._told, self._clock = trials, told, clock
        self._since = clock()

    def once(self, genes: Genes, steps: int, make: Callable[[], Trial]) -> Trial:
        """The trial of a row of numbers with so many steps; made if that was not done."""
        seen = self.trials.of(genes, steps)
        if seen is not None:
            return seen
        trial = self.trials.on_disk(genes, steps) or self.trials.begin(genes, steps)
        try:
            trial = trial or make()
        finally:
            self.trials.end()
        return self.ended(trial)

    @property
    def seconds(self) -> float:
        """Seconds of the trials, and those since the last one ended."""
        return self.trials.seconds + self._clock() - self._since

    def ended(self, trial: Trial) -> Trial:
        """Count a trial that ended, with the time since the one before it."""
        if self.trials.on_disk(trial.genes, trial.steps) is None:
            trial = replace(trial, seconds=self._clock() - self._since)
        self._since = self._clock()
        self.trials.add(trial)
        self._told(trial)
        return trial
