"""Exported files timed in a process of their own, which does nothing else.

A process that has trained a while runs some files slower than others: three layers of MiniLM-L6 in OpenVINO, timed
beside all six, were 1.60 times as fast in a search of 22 minutes, and 1.89 to 2.12 times in a process without a past.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from greenformers.checkpoint.files import line
from greenformers.export.write import reader
from greenformers.measure.latency import interleaved

EXAMPLES = "examples.safetensors"
"""File of the inputs."""


@dataclass(frozen=True)
class File:
    """An exported file, and what it is called with.

    Attributes:
        runtime: Format of the file.
        folder: Folder of the export.
        inputs: Names of its inputs.
        example: The inputs, in this order.
    """

    runtime: str
    folder: Path
    inputs: tuple[str, ...]
    example: tuple[Tensor, ...]


class Timer:
    """The process, which starts with the first files, as its imports take seconds, and ends with this one.

    Attributes:
        program: What Python runs in it.
    """

    program: tuple[str, ...] = ("-m", "greenformers.export.apart")

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._end: Callable[[], object] = lambda: None

    def times(
        self, files: Sequence[File], *, repeats: int, warmup: int, min_time: float, pause: float
    ) -> list[tuple[float, ...]]:
        """Seconds of the calls of each file, in turns, see `interleaved`, with as many threads as torch has here.

        Args:
            files: The files.
            repeats: Least number of rounds.
            warmup: Untimed runs of each file beforehand.
            min_time: Seconds that all rounds take together at least.
            pause: Seconds of rest before each sample.

        Raises:
            ValueError: A file cannot be read or run.
        """
        with TemporaryDirectory() as place:
            how = {"repeats": repeats, "warmup": warmup, "min_time": min_time, "pause": pause}
            answer = self._asked(_job(files, Path(place), how))
        if "error" in answer:
            raise ValueError(answer["error"])
        return [tuple(samples) for samples in answer["samples"]]

    def _asked(self, job: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            # A signal for this process is not for that one, and what lies in the working folder none of its modules.
            self._process = subprocess.Popen(
                [sys.executable, *self.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, text=True, start_new_session=True,
                env={**os.environ, "PYTHONSAFEPATH": "1"},
            )  # fmt: skip
            self._end = weakref.finalize(self, _end, self._process)
        asks, says = cast(IO[str], self._process.stdin), cast(IO[str], self._process.stdout)
        try:
            asks.write(json.dumps(job) + "\n")
            asks.flush()
            said = says.readline()
        except BrokenPipeError:
            said = ""
        except BaseException:  # its answer would be taken for that to the next question
            self._forget()
            raise
        if not said:
            return {"error": f"a process that was to time files ended with {self._forget()}"}
        answer: dict[str, Any] = json.loads(said)
        return answer

    def _forget(self) -> int:
        """End the process; returns with what it ended."""
        process, self._process = cast("subprocess.Popen[str]", self._process), None
        with suppress(subprocess.TimeoutExpired):  # it may be about to end by itself
            process.wait(1)
        code = process.poll()
        self._end()
        return process.returncode if code is None else code


def _job(files: Sequence[File], place: Path, how: Mapping[str, float]) -> dict[str, Any]:
    """What the process is asked; the inputs are written to a folder."""
    examples = {
        f"{number} {name}": x.clone(memory_format=torch.contiguous_format)
        for number, file in enumerate(files)
        for name, x in zip(file.inputs, file.example, strict=True)
    }
    save_file(examples, place / EXAMPLES)
    names = [[file.runtime, str(file.folder.absolute()), file.inputs] for file in files]
    return {"files": names, "place": str(place), "how": dict(how), "threads": torch.get_num_threads()}


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        with suppress(BrokenPipeError):  # what it did not read
            cast(IO[str], stream).close()


def main() -> None:
    """Time the files that each line of the input names, and print their seconds in a line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    says = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    for asked in sys.stdin:
        try:
            answer: dict[str, Any] = {"samples": _samples(json.loads(asked))}
        except Exception as error:
            answer = {"error": line(error)}
        gc.collect()
        print(json.dumps(answer), file=says, flush=True)


def _samples(job: dict[str, Any]) -> list[tuple[float, ...]]:
    torch.set_num_threads(job["threads"])
    given = load_file(Path(job["place"]) / EXAMPLES)
    calls = {
        str(number): partial(reader(runtime, Path(folder), inputs), *(given[f"{number} {name}"] for name in inputs))
        for number, (runtime, folder, inputs) in enumerate(job["files"])
    }
    with torch.inference_mode():
        return [timing.samples for timing in interleaved(calls, **job["how"]).values()]


if __name__ == "__main__":
    main()
