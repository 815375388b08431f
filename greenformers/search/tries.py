"""Trials one after the other: each is made once, kept on disk, and counted with the time that it took.

Several processes make one each at a time, and all of them then know of all trials.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from time import monotonic
from typing import Any, TypeVar

from greenformers.search.space import Genes
from greenformers.search.trials import Trial, Trials
from greenformers.train.others import Others

T = TypeVar("T")

Turn = Callable[[Callable[[], Any]], Any]
"""A function that calls another, as soon as this process has the machine to itself."""


class Tries:
    """What makes the trials of a search.

    Args:
        trials: What was tried before, if anything; trials are added.
        told: Function that is called, in the first process, with each trial that ended.
        clock: Function that gives the time in seconds.
        others: The processes that make them, which must ask for the same trials; None for this one alone.
        listener: Function that is called with a trial of this process that an earlier run made, before it is counted.
    """

    def __init__(
        self, trials: Trials, told: Callable[[Trial], None] = lambda _: None, clock: Callable[[], float] = monotonic,
        others: Others | None = None, listener: Callable[[Trial], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.trials, self._told, self._clock, self._listener = trials, told, clock, listener
        self._others = Others() if others is None else others
        self._since = clock()

    @property
    def at_once(self) -> int:
        """Trials that are made at once."""
        return self._others.count

    @property
    def seconds(self) -> float:
        """Seconds of the trials, and those since the last one ended."""
        return self.trials.seconds + self._clock() - self._since

    def first(self, value: T) -> T:
        """What the first process gives, for all of them."""
        return self._others.gathered(value)[0]

    def passed(self) -> float:
        """The seconds since the last trial ended, which the caller counts: for the next one they begin anew."""
        seconds, self._since = self._clock() - self._since, self._clock()
        return seconds

    def spent(self, seconds: float) -> None:
        """Count seconds that an earlier run spent on the next trial."""
        self._since -= seconds

    def all(
        self, rows: Sequence[Genes], steps: int, make: Callable[[Genes, Turn], Trial],
        over: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        """Make the trials of these rows of numbers with so many steps that were not made.

        Args:
            rows: The rows.
            steps: The steps.
            make: Function that makes the trial of a row, and times it in a turn.
            over: Function that says whether no more are to be made; it is asked before each, or before as many as are
                made at once.
        """
        new = [genes for genes in dict.fromkeys(rows) if self.trials.of(genes, steps) is None]
        for at in range(0, len(new), self.at_once):
            if over():
                return
            self._together(new[at : at + self.at_once], steps, make)

    def _together(self, rows: Sequence[Genes], steps: int, make: Callable[[Genes, Turn], Trial]) -> None:
        """Make up to one trial in each process."""
        own = None
        if self._others.rank < len(rows):
            genes = rows[self._others.rank]
            own = self.trials.on_disk(genes, steps)
            if own is None:  # what is on disk ends nothing: another may have ended the process
                try:
                    own = self.trials.begin(genes, steps) or make(genes, self._others.turn)
                finally:
                    self.trials.end()
            else:
                self._listener(own)
        self._others.ended()
        ended = [Trial.of(row) for row in self._others.gathered(None if own is None else asdict(own)) if row]
        seconds, *_ = self._others.gathered(self._clock() - self._since)
        new = sum(self.trials.on_disk(trial.genes, steps) is None for trial in ended)
        for trial in ended:
            if self.trials.on_disk(trial.genes, steps) is None:
                training = None if trial.training is None else trial.training / new
                trial = replace(trial, seconds=seconds / new, training=training)
            seen = self.trials.add(trial)
            if self._others.rank == 0:
                self._told(seen)
        self._since = self._clock()
