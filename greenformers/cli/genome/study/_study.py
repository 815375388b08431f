"""Flags of the studies of fine-tuning, and the run of one study."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from greenformers.cli import _terminal as terminal
from greenformers.genome.settings import Finetuning

if TYPE_CHECKING:
    from collections.abc import Callable

    from greenformers.measure.record import Record

Splits = (Annotated[int, typer.Option(help="Random splits into train, valid and test people, at each point.")], 5)
KnownPositions = (
    Annotated[
        str, typer.Option("--known", help="Positions of known variants, with commas, for a baseline of their own.")
    ],
    "",
)
References = Annotated[
    Path | None, typer.Option(help="Folder with the published tables, which are shown beside the results.")
]


def study(
    run: "Callable[[Finetuning, Any], list[Record]]",
    settings: Finetuning,
    out: Path,
    resume: bool,
    results: Path | None,
    key: str,
    across: str,
) -> None:
    """Run a study, and show and draw its records.

    Args:
        run: Function that runs the study with these settings and a console, and gives its records.
        settings: Settings of all runs.
        out: Folder of the runs and of the picture.
        resume: Whether to go on with a study that was stopped.
        results: File that the records are appended to; None for none.
        key: Name of the quantity in the records' settings.
        across: Label of the quantity.

    Raises:
        ValueError: The folder is not empty and `resume` is not set.
    """
    from rich.table import Table

    from greenformers.measure.record import append, context
    from greenformers.report.draws import draws, listed
    from greenformers.report.fit import fitted
    from greenformers.report.plot import save

    if out.exists() and any(out.iterdir()) and not resume:
        raise ValueError(f"{out} is there already; --resume goes on with it")
    if results is not None:
        terminal.check_results(results)
    console = terminal.console()
    with terminal.resumable():
        records = run(settings, console)
    values = list(dict.fromkeys(record.setting[key] for record in records))
    table = Table("AUC in % (s.d.)", *(f"{value:,}" for value in values), title=across)
    for name, row in listed(records, key, "auc").items():
        table.add_row(name, *(row.get(value, "") for value in values))
    terminal.show(console, fitted(table, console.width))
    out.mkdir(parents=True, exist_ok=True)
    picture = out / "study.png"
    save(draws(across, across, records, key, metrics=("auc", "f1")), picture)
    print(f"picture: {picture}")
    if results is not None:
        about = context(terminal.command(), 0)
        append(results, [replace(record, context=about) for record in records])
