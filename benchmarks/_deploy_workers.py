"""Worker processes that each hold one form of a network, and their times, taken in turns."""

import json
import os
import random
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

GAP = 0.05
"""Seconds between two workers: threads of one that still spin would take time from the next."""


def environ(threads: int) -> dict[str, str]:
    """The variables of a process: so many threads for every library, none for what is not the network."""
    return os.environ | {
        "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "RAYON_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip


class Worker:
    """A process that answers commands, see `deploy_peers/serve.py`.

    Args:
        command: its command line.
        threads: its number of threads.
        log: file for what its libraries print.
    """

    def __init__(self, command: Sequence[str | Path], threads: int, log: Path) -> None:
        with log.open("w") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True, env=environ(threads)
            )
        self._given = command, threads, log

    def again(self) -> Self:
        """A new process of the same command."""
        return type(self)(*self._given)

    def ask(self, do: str, **given: Any) -> Any:
        """The answer to a command.

        Raises:
            RuntimeError: the process ended before it answered; the message is the last line that it printed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended: there is no answer
            print(json.dumps({"do": do, **given}), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        time.sleep(GAP)
        if not answer:
            self._process.wait()  # until then what it says last may not be written
            raise RuntimeError((self._given[2].read_text().splitlines() or ["it ended without a word"])[-1])
        return json.loads(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def in_turns(
    workers: Mapping[str, Worker], rounds: int, **given: Any
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Milliseconds of each worker's call in every round, after one call untimed, and its peak of memory in MiB."""
    for worker in workers.values():
        worker.ask("time", **given | {"seconds": 0})
    samples: dict[str, list[float]] = {name: [] for name in workers}
    for name in _turns(workers, rounds):
        samples[name].append(workers[name].ask("time", **given))
    return samples, {name: worker.ask("peak") for name, worker in workers.items()}


def alone(workers: Mapping[str, Worker], rounds: int, **given: Any) -> tuple[dict[str, list[float]], dict[str, float]]:
    """As `in_turns`, with a new process for every turn: runtimes keep the memory of large calls, too much for all."""
    samples: dict[str, list[float]] = {name: [] for name in workers}
    peaks: dict[str, float] = {}
    for name in _turns(workers, rounds):
        with workers[name].again() as worker:
            worker.ask("time", **given | {"seconds": 0})
            samples[name].append(worker.ask("time", **given))
            peaks[name] = worker.ask("peak")
    return samples, peaks


def _turns(names: Iterable[str], rounds: int) -> Iterator[str]:
    """All names in every round, in an order drawn anew each round."""
    order, shuffle = list(names), random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        yield from order
