"""`greenformers report`. Heavy imports are inside the command, so that --help answers at once."""

from pathlib import Path
from typing import Annotated

import typer

from greenformers.cli import _terminal as terminal

ORDER = 120
GROUP = "Measure and choose"
EXAMPLES = ("greenformers report results/bench.jsonl",)


def report(
    given: typer.Context,
    records: Annotated[Path, typer.Argument(help="JSONL file of records.")],
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("report"),
    markdown: Annotated[bool, typer.Option("--markdown", help="Only print the table, as Markdown.")] = False,
) -> None:
    """Write a report page of the newest run of each benchmark in a file of records."""
    from greenformers.measure.newest import newest
    from greenformers.measure.record import read
    from greenformers.report.page import write
    from greenformers.report.table import markdown as table_in_markdown
    from greenformers.report.table import tables

    if not markdown:
        terminal.check_page(out, "out")
    elif terminal.is_typed(given, "out"):
        raise ValueError(f"--markdown only prints: --out would have no effect, got {out}")
    latest = newest(read(records))
    if markdown:
        print(table_in_markdown(latest), end="")
        return
    console = terminal.console()
    page = write(latest, out)
    terminal.show(console, tables(latest, console.width))
    console.print(f"report:  {page}", markup=False, soft_wrap=True)
