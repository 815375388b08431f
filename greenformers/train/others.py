"""Several processes, started by torchrun or accelerate, that each work on something else, and tell what came of it.

They do so through the store of their launcher: a process group would be taken by each training for its own.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from time import sleep
from typing import Any, TypeVar

from greenformers.train._accelerate import forget_group
from greenformers.train.processes import WAIT, apart, processes, rank

T = TypeVar("T")

LOOK = 0.02
"""Seconds between two looks for what others tell, at most: a process that waits takes no part of the machine, and obeys
signals."""

_USES = count()


class Others:
    """The processes of a run, which all call the same methods in the same order.

    Args:
        rank: The number of this process.
        count: Number of processes.
        store: Where they tell each other; None for one process.
    """

    def __init__(self, rank: int = 0, count: int = 1, store: Any = None) -> None:
        self.rank, self.count = rank, count
        self._store, self._told = store, 0

    def gathered(self, value: T) -> list[T]:
        """What each process gives, of what JSON can hold, in the order of their numbers, for all of them."""
        if self._store is None:
            return [value]
        self._told += 1
        keys = [f"{self._told}/{number}" for number in range(self.count)]
        self._store.set(keys[self.rank], json.dumps(value))
        look = LOOK / 100
        while not self._store.check(keys):
            sleep(look)
            look = min(LOOK, 2 * look)
        return [json.loads(self._store.get(key)) for key in keys]

    def turn(self, work: Callable[[], T]) -> T:
        """What a function gives that needs the machine for itself, as what is timed does.

        Those who ask for a turn have it one after the other, as soon as all others ask as well or have called `ended`.

        Args:
            work: The function, which must not ask for a turn itself.
        """
        results: list[T] = []
        errors: list[Exception] = []

        def tried() -> None:
            try:
                results.append(work())
            except Exception as error:
                errors.append(error)

        self._turns(tried)
        if errors:
            raise errors[0]
        return results[0]

    def ended(self) -> None:
        """Let others have their turns until all of them have ended too."""
        while self._turns(None):
            pass

    def _turns(self, work: Callable[[], None] | None) -> bool:
        """A round of turns; whether there was any."""
        asking = self.gathered(work is not None)
        for number, asks in enumerate(asking):
            if asks and number == self.rank and work is not None:
                work()
            if asks:
                self.gathered(None)
        return any(asking)


@contextmanager
def each_alone() -> Iterator[Others]:
    """A `with` block as `apart`, in which processes can tell each other things, and may train."""
    others = _others()
    try:
        with apart():
            yield others
    finally:
        forget_group()


def _others() -> Others:
    if processes() == 1:
        return Others()
    from torch.distributed import PrefixStore, rendezvous

    store, *_ = next(rendezvous("env://", timeout=WAIT))
    return Others(rank(), processes(), PrefixStore(f"others-{next(_USES)}", store))
