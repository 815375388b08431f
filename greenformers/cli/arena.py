"""`greenformers arena`. Heavy imports are inside the command, so that --help answers at once."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from greenformers.arena.options import Grid
from greenformers.cli import _terminal as terminal
from greenformers.cli._flags import Results
from greenformers.cli._options import from_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from greenformers.arena.grid import Plan

ORDER = 45
GROUP = "Train a model of your own"
SEVERAL = True
EXAMPLES = (
    "greenformers arena --tasks listops --seeds 1 --list",
    "greenformers arena --tasks listops,text,pixels --data DATA --variants all --out runs/arena",
)


@from_fields
def arena(
    given: typer.Context,
    *,
    grid: Grid,
    out: Annotated[Path, typer.Option(help="Folder of the grid; the same command goes on with it.")] = Path("arena"),
    show: Annotated[bool, typer.Option("--list", help="Only list what is to be done, and how long it takes.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Try once more what could not be done before.")] = False,
    results: Results = None,
    references: Annotated[
        Path | None, typer.Option(help="Folder with the published tables, which are shown beside the results.")
    ] = None,
) -> None:
    """Train variants on long-range tasks in the same way, with the controls that tell what a score is worth.

    Tasks: ListOps, byte text, byte retrieval, pixels, Pathfinder and
    Path-X. Beside each variant stand a local window of the same FLOPs,
    the same network pretrained on the task's own inputs in as many steps
    in all, and baselines without a network.

    OUT holds a run for each task, variant and seed, and `report`. A grid
    that was stopped, or killed, goes on with the same command; several
    such commands, or processes of torchrun, share out the runs. Exit
    code 1: something could not be done; the page says what and why.
    """
    from greenformers.arena.grid import carried_out, planned
    from greenformers.arena.lock import locked
    from greenformers.arena.protocol import TASKS
    from greenformers.arena.records import records_of
    from greenformers.arena.speed import LENGTHS_OF
    from greenformers.measure.record import append, context
    from greenformers.report.arena import sentence, tables, write
    from greenformers.report.published import SURVEY, absent
    from greenformers.train.processes import apart, first_process

    terminal.quiet()
    console = terminal.console()
    if out.exists() and not out.is_dir():
        raise ValueError(f"out must be a folder, {out} is none")
    if show and (idle := [name for name in ("retry", "results") if terminal.is_typed(given, name)]):
        raise ValueError(f"--list only lists: --{idle[0]} would have no effect")
    reading = [name for name, task in TASKS.items() if task.folder is not None]
    if grid.data is not None and all(name in TASKS and name not in reading for name in grid.tasks):
        raise ValueError(f"data is for {', '.join(reading)}; the tasks are {', '.join(grid.tasks)}")
    if terminal.is_typed(given, "lengths") and LENGTHS_OF not in grid.tasks:
        raise ValueError(f"lengths are for {LENGTHS_OF}; the tasks are {', '.join(grid.tasks)}")
    terminal.check_folder(references, "references")
    if results is not None:
        terminal.check_results(results)
    about = context(terminal.command(), 0)

    def told(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    first = first_process()
    with terminal.resumable("the same command goes on"), apart():
        # One after the other: what the first has counted and timed, the others read.
        with nullcontext() if show else locked(out):
            plan = planned(grid, out, stored=not show)
        for task, reasons in plan.unusable.items() if first else ():
            for name, reason in reasons.items():
                told(f"left out: {name} on {task}: {reason}")
        if show:
            listed(plan, told)
            return
        failures = carried_out(plan, about, progress(console), told, retry=retry)
    if not first:
        return
    records = records_of(plan, about)
    terminal.show(console, tables(plan, records, references))
    told(sentence(plan, records))
    if results is not None:
        append(results, records)
    page = write(plan, records, out / "report", references)
    told(f"report: {page}")
    if line := absent(references, (SURVEY,)):
        told(line)
    for failure in failures:
        told(f"not done: {failure}")
    if failures:
        sys.exit(1)


def listed(plan: "Plan", told: "Callable[[str], None]") -> None:
    """A line for each part of a plan: done, not done for a reason, or how long it takes."""
    from greenformers.arena.grid import words_of

    for part in plan.parts:
        state = "done" if part.ended else f"not done: {part.failure}" if part.failure else words_of(part.seconds)
        told(f"{part}: {state}")
    left = [part.seconds for part in plan.parts if not part.ended and not part.failure]
    told(f"{len(left)} of {len(plan.parts)} parts to do, about {words_of(sum(left))}")


def progress(console: "Console") -> "Console":
    """The console of progress bars: in a file they would be lines without end."""
    from rich.console import Console

    return console if console.is_terminal else Console(quiet=True)
