"""What the studies of fine-tuning share: flags, and one run of a study."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from greenformers.cli import _terminal as terminal
from greenformers.genome.settings import Finetuning

if TYPE_CHECKING:
    from collections.abc import Callable

    from greenformers.measure.record import Record

Splits = (Annotated[int, typer.Option(help="Draws of train, valid and test people, of each point.")], 5)
Known = (Annotated[str, typer.Option(help="Positions of known variants, for a baseline of their own.")], "")
Results = Annotated[Path | None, typer.Option(help="File the records are added to.")]
References = Annotated[Path | None, typer.Option(help="Folder with the published tables, to print beside.")]


def study(
    run: "Callable[[Finetuning, Any], list[Record]]",
    settings: Finetuning,
    out: Path,
    resume: bool,
    results: Path | None,
    key: str,
    across: str,
) -> None:
    """Run a study, and show and draw its records: metrics by the values of a setting, `key`."""
    from rich.table import Table

    from greenformers.measure.record import append, context
    from greenformers.report.draws import draws, listed
    from greenformers.report.fit import fitted
    from greenformers.report.plot import save

    if out.exists() and any(out.iterdir()) and not resume:
        raise ValueError(f"{out} is there already; --resume goes on with it")
    if results is not None:
        terminal.check_writable(results)
    console = terminal.console()
    with terminal.resumable():
        found = run(settings, console)
    values = list(dict.fromkeys(record.setting[key] for record in found))
    table = Table("AUC in % (s.d.)", *(f"{value:,}" for value in values), title=across)
    for name, row in listed(found, key, "auc").items():
        table.add_row(name, *(row.get(value, "") for value in values))
    terminal.show(console, fitted(table, console.width))
    out.mkdir(parents=True, exist_ok=True)
    picture = out / "study.png"
    save(draws(across, across, found, key, metrics=("auc", "f1")), picture)
    print(f"picture: {picture}")
    if results is not None:
        about = context(terminal.command(), 0)
        append(results, [replace(record, context=about) for record in found])
