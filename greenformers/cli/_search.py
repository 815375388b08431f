"""What `greenformers compress` does with --lose or --faster: it searches, shows the front, and writes the best."""

from pathlib import Path
from typing import TYPE_CHECKING

from greenformers.cli import _terminal as terminal
from greenformers.compress.job import Job

if TYPE_CHECKING:
    from greenformers.search.bound import Bound
    from greenformers.search.search import Search
    from greenformers.search.trials import Trial

MINUTES = 30.0


def searched(
    model: str, out: Path, job: Job, *, lose: str | None, faster: str | None, runtime: str | None,
    minutes: float | None, results: Path | None, report: Path | None,
) -> None:  # fmt: skip
    """Search for a recipe, make the best, and say what it is.

    Raises:
        ValueError: An option is out of range, or the search cannot be made.
    """
    from greenformers.advise.in_runtime import TORCH
    from greenformers.checkpoint.pretrained import model_name
    from greenformers.measure.record import append, context
    from greenformers.report.front import front_table, sentence, write
    from greenformers.report.table import tables
    from greenformers.search.run import find
    from greenformers.train.processes import first_process

    bound = bound_of(lose, faster)
    terminal.quiet()
    console = terminal.console()
    if results is not None:
        terminal.check_results(results)
    minutes = MINUTES if minutes is None else minutes
    about = context(terminal.command(), job.seed)
    with terminal.resumable("the same command goes on"), terminal.Steps(console) as steps:

        def told(search: "Search", trial: "Trial") -> None:
            console.print(line(search, trial), markup=False, soft_wrap=True)
            steps("searching", min(1.0, search.trials.seconds / search.plan.seconds))

        outcome = find(
            model, out, job, bound, runtime=runtime or TORCH, minutes=minutes, about=about, told=told,
            progress=steps if first_process() else lambda *_: None,
        )  # fmt: skip
    if not first_process():
        return
    terminal.show(console, [front_table(outcome, runtime or TORCH)])
    terminal.show(console, tables(outcome.records, console.width))
    console.print("\n".join([*outcome.notes, sentence(outcome, bound, runtime or TORCH)]), markup=False, soft_wrap=True)
    if results is not None:
        append(results, outcome.records)
    page = write(
        outcome, bound, runtime or TORCH, model, job, report or out / "report", f"{model_name(model)}, searched"
    )
    console.print(f"model:  {out}\nreport: {page}", markup=False, soft_wrap=True)


def bound_of(lose: str | None, faster: str | None) -> "Bound":
    """The bound that was typed.

    Raises:
        ValueError: Both were typed, or one is no share or factor, or out of range.
    """
    from greenformers.search.bound import Bound

    if lose is not None and faster is not None:
        raise ValueError("--lose and --faster exclude each other: use only one of them")
    return Bound(
        lose=None if lose is None else share("lose", lose), faster=None if faster is None else times("faster", faster)
    )


def line(search: "Search", trial: "Trial") -> str:
    """A trial in a line: its number, what it gives, its recipe, and how far the search is.

    A star marks what no other recipe beats so far in speed and in quality.
    """
    from greenformers.report.front import recipe_words
    from greenformers.search.trials import front

    number, words = len(search.trials.seen), recipe_words(search, trial)
    if trial.refused is not None:
        return f"{number:4d}  {words}: {trial.refused}"
    star = "*" if trial in front(search.trials.done()) else " "
    return (
        f"{number:4d}  {star} {trial.speed:5.2f}x as fast, keeps {1 - trial.lost:7.2%}, {trial.smaller:4.1f}x smaller: "
        f"{words} ({_so_far(search, trial)})"
    )


def _so_far(search: "Search", trial: "Trial") -> str:
    """The best so far in words, where that is not this trial, and the minutes that are left."""
    best = search.best()
    said = "best" if search.plan.bound.met_by(best) else "nearest"
    figures = "" if trial == best else f": {best.speed:.2f}x, {1 - best.lost:.2%}"
    left = max(0.0, search.plan.seconds - search.trials.seconds) / 60
    return f"{said} so far{figures}; {left:.0f} min left"


def share(name: str, text: str) -> float:
    """A share of one, of a text such as "1%" or "0.01".

    Raises:
        ValueError: The text is anything else.
    """
    number = text.strip().removesuffix("%").strip()
    try:
        value = float(number)
    except ValueError as error:
        raise ValueError(f"{name} must be a share such as 1% or 0.01, got {text!r}") from error
    if not text.strip().endswith("%") and value >= 1:
        raise ValueError(f"{name} must be a share such as 1% or 0.01, got {text!r}: write {text}% for per cent")
    return value / 100 if text.strip().endswith("%") else value


def times(name: str, text: str) -> float:
    """A factor, of a text such as "3x" or "3".

    Raises:
        ValueError: The text is anything else.
    """
    try:
        return float(text.strip().lower().removesuffix("x").strip())
    except ValueError as error:
        raise ValueError(f"{name} must be a factor such as 3x, got {text!r}") from error
