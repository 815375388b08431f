"""Input of commands from the terminal, and their output on it."""

import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import typer
    from rich.console import Console, RenderableType


def console(*, stderr: bool = False) -> "Console":
    """A console as wide as the terminal; where the output goes elsewhere, wide enough for five variants."""
    from rich.console import Console

    there = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(width=None if there else 120, highlight=False, stderr=stderr)


def show(console: "Console", parts: "Iterable[RenderableType]") -> None:
    """Print tables, and the texts between them, one after the other."""
    for part in parts:
        console.print(part)


def quiet() -> None:
    """Silence the log and the progress bars of transformers, which would break our own progress bars."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def command() -> str:
    """The command as typed, with only the last part of absolute paths: records are published."""
    return shlex.join(["greenformers", *map(_without_folders, sys.argv[1:])])


def _without_folders(word: str) -> str:
    """A word of a command line, an option with its value among them, with only the last part of an absolute path."""
    option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    return f"{option}{equals}{Path(value).name}" if Path(value).is_absolute() else word


def is_typed(given: "typer.Context", name: str) -> bool:
    """Whether an option was typed, also with its default."""
    source = given.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def numbers(name: str, text: str) -> list[int]:
    """Whole numbers of at least 1 from a text in which they are separated by commas; none from an empty text.

    Args:
        name: Name of the option, for the message.
        text: Text that was typed.

    Raises:
        ValueError: The text is anything else.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ValueError(f"{name} must be whole numbers from 1 on, with commas between; got {text!r}")
    return [int(word) for word in words]


def pairs(name: str, texts: list[str]) -> dict[str, Any]:
    """Options by name from texts of the form name=value; values are numbers, booleans, lists or text.

    Args:
        name: Name of the option that takes these texts, for the message.
        texts: Texts that were typed.

    Raises:
        ValueError: A text has no "=".
    """
    from greenformers.train.setting import value_of

    parts = [text.partition("=") for text in texts]
    for given, equals, _ in parts:
        if not equals:
            raise ValueError(f"{name} must be name=value, got {given!r}")
    return {given: value_of(value) for given, _, value in parts}


def check_writable(results: Path) -> None:
    """Check, before the work, that its results can be written.

    Raises:
        ValueError: The folder of the file neither exists nor can be created.
        OSError: The file cannot be written.
    """
    existed, folder = results.exists(), results.parent
    if not folder.is_dir():
        # The folder is created when there is something to write, but not those around it: a mistyped path would leave
        # folders anywhere.
        around = folder.resolve().parent
        if folder.exists() or not around.is_dir() or around == around.parent or not os.access(around, os.W_OK):
            raise ValueError(f"{results} cannot be written: {folder} is no folder; create it, or choose another file")
        return
    with results.open("ab"):
        pass
    if not existed:
        results.unlink()


def check_results(results: Path) -> None:
    """Check, before the work, that records can be added to a file.

    Raises:
        ValueError: It holds anything else, or its folder neither exists nor can be created.
        OSError: The file cannot be written.
    """
    check_writable(results)
    if results.is_file():
        from greenformers.measure.record import read

        read(results)


def check_apart(out: Path, *sources: str | Path | None) -> None:
    """Check that a result does not take the place of what it is made from, or of the records of it.

    Args:
        out: Folder of the result.
        sources: Folders or names of models, and paths of texts and records; None for none.

    Raises:
        ValueError: One of them is in that folder.
    """
    for source in sources:
        if source is not None and (isinstance(source, Path) or Path(source).exists()):
            there = Path(source).resolve()
            if out.resolve() in (there, *there.parents):
                raise ValueError(f"out must be another folder than that of {source}, which it would replace; got {out}")


def check_page(folder: Path, option: str = "report") -> None:
    """Check, before the work, that a page can be written to a folder.

    Args:
        folder: The folder.
        option: Name of the option that names it.

    Raises:
        ValueError: It is a file, stands below one, or cannot be written to.
    """
    there = next((place for place in (folder, *folder.absolute().parents) if place.exists()), folder)
    if not there.is_dir():
        raise ValueError(f"{option} must be a folder, and {there} is a file")
    if not os.access(there, os.W_OK):
        raise ValueError(f"{option} must be a folder that can be written to, {there} cannot")


def check_folder(folder: Path | None, option: str) -> None:
    """Check, before the work, that a folder that is to be read is there; None is none.

    Raises:
        ValueError: It is not.
    """
    if folder is not None and not folder.is_dir():
        raise ValueError(f"{option} must be a folder that is there, got {folder}")


@contextmanager
def resumable(how: str = "go on with --resume") -> "Iterator[None]":
    """A context for long work: a signal ends the command, with one line on how the work goes on.

    Training handles the signals itself, and ends after the current step; all other work ends at once.

    Args:
        how: Text of that line after "stopped; ".
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
    """Progress bars of work with named steps; none is shown before the first step, as training shows its own bar.

    Args:
        console: Console that the bars are on.
    """

    def __init__(self, console: "Console") -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = ("{task.description}", BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
        # Where the bars are on stderr, printed text must still go to stdout.
        apart = console.stderr
        self._bars = Progress(
            *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, redirect_stdout=not apart
        )
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> "Steps":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._tasks:
            # What stopped the work is said in the place of the bars.
            self._bars.live.transient = kind is not None
            self._bars.stop()

    def __call__(self, step: str, share: float) -> None:
        if not self._tasks:
            self._bars.start()
        if step not in self._tasks:
            self._tasks[step] = self._bars.add_task(step, total=1.0)
        self._bars.update(self._tasks[step], completed=share)
