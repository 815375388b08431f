"""What commands read from the terminal and show on it."""

import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def console(*, stderr: bool = False) -> "Console":
    """A console as wide as the terminal; wide enough for five variants where the output goes elsewhere."""
    from rich.console import Console

    there = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(width=None if there else 120, highlight=False, stderr=stderr)


def show(console: "Console", parts: "Iterable[RenderableType]") -> None:
    """Print tables, and what stands between them."""
    for part in parts:
        console.print(part)


def quiet() -> None:
    """Leave the terminal to our own progress bars."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def command() -> str:
    """The command as typed; of paths only the last part, for records travel."""
    words = [Path(word).name if "/" in word and Path(word).is_absolute() else word for word in sys.argv[1:]]
    return shlex.join(["greenformers", *words])


def numbers(name: str, text: str) -> list[int]:
    """Whole numbers from 1 on, with commas between; none in an empty text.

    Raises:
        ValueError: anything else.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ValueError(f"{name} must be whole numbers from 1 on, with commas between; got {text!r}")
    return [int(word) for word in words]


def pairs(name: str, texts: list[str]) -> dict[str, Any]:
    """Options as typed, name=value, with values as numbers, true or false, lists or text.

    Raises:
        ValueError: one without a value.
    """
    from greenformers.train.settings import value_of

    found = [text.partition("=") for text in texts]
    for given, equals, _ in found:
        if not equals:
            raise ValueError(f"{name} must be name=value, got {given!r}")
    return {given: value_of(value) for given, _, value in found}


def check_writable(results: Path) -> None:
    """Find out before the work, not after it, that its results cannot be written."""
    existed, folder = results.exists(), results.parent
    if not folder.is_dir():
        # It is made when there is something to write, and none around it: a mistyped path would leave folders anywhere.
        around = folder.resolve().parent
        if folder.exists() or not around.is_dir() or around == around.parent or not os.access(around, os.W_OK):
            raise ValueError(f"{results} cannot be written: {folder} is no folder; make it, or name another place")
        return
    with results.open("ab"):
        pass
    if not existed:
        results.unlink()


@contextmanager
def resumable(how: str = "go on with --resume") -> "Iterator[None]":
    """Of long work in a `with` block: a signal ends the command, and how to go on is said in one line.

    Training takes the signals itself, and ends after the step under way; all else ends where it is.
    """
    import signal

    from greenformers.train.run import Stopped

    def stop(number: int, _: object) -> None:
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except Stopped as stopped:
        print(f"stopped; {how}")
        sys.exit(128 + stopped.signal)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Steps:
    """Progress of work that names its steps; nothing is shown before the first, so that training may show its own."""

    def __init__(self, console: "Console") -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = ("{task.description}", BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
        # What is printed goes to stdout, not where the bars are.
        apart = console.stderr
        self._bars = Progress(
            *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, redirect_stdout=not apart
        )
        self._known: dict[str, Any] = {}

    def __enter__(self) -> "Steps":
        return self

    def __exit__(self, *_: object) -> None:
        if self._known:
            self._bars.stop()

    def __call__(self, what: str, share: float) -> None:
        if not self._known:
            self._bars.start()
        if what not in self._known:
            self._known[what] = self._bars.add_task(what, total=1.0)
        self._bars.update(self._known[what], completed=share)
