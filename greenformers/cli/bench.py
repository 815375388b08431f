"""`greenformers bench`. Heavy imports are inside the command, so that --help answers at once."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._options import from_fields
from greenformers.measure.bench_options import How, Network

ORDER = 80
GROUP = "Measure and choose"
EXAMPLES = (
    "greenformers bench",
    "greenformers bench --variants linformer,lrt --lengths 512,1024,2048 --ranks 64,128",
)


@from_fields
def bench(
    *,
    variants: Annotated[
        str | None,
        typer.Option(
            help="Names, with commas: lrt, an attention, or lrt+ and an attention. By default all that can be."
        ),
    ] = None,
    lengths: Annotated[str, typer.Option(help="Sequence lengths, with commas.")] = "16,64,256,1024,4096",
    ranks: Annotated[str, typer.Option(help="Ranks, also projected lengths and the like, with commas.")] = "16,64,256",
    network: Network,
    how: How,
    memory: Annotated[float | None, typer.Option(help="GiB: find the largest batch that fits, too.")] = None,
    energy: Annotated[bool, typer.Option(help="Measure energy, or estimate it where there is no meter.")] = True,
    country: Annotated[str, typer.Option(help="Whose electricity: a 3-letter ISO code.")] = "USA",
    results: Annotated[
        Path, typer.Option(help="File the records are added to; cells in it are not measured again.")
    ] = Path("results/bench.jsonl"),
    out: Annotated[Path, typer.Option(help="Folder of the figures and their page.")] = Path("bench"),
    published: Annotated[
        Path | None, typer.Option(help="Folder with the published figures, to be drawn beside these.")
    ] = None,
) -> None:
    """Measure variants over lengths and ranks, beside dense attention, and draw the figures of the thesis."""
    from greenformers.measure.bench import bench as run
    from greenformers.measure.bench import setting
    from greenformers.measure.grid import cells
    from greenformers.measure.grid import variants as every
    from greenformers.measure.record import append, context, read
    from greenformers.report.study import write

    terminal.quiet()
    console = terminal.console()
    how = replace(how, memory=None if memory is None else memory * 2**30, country=country if energy else None)
    chosen = every(network.causal) if variants is None else [name.strip() for name in variants.split(",")]
    wanted = cells(chosen, terminal.numbers("lengths", lengths), terminal.numbers("ranks", ranks), network)
    terminal.check_writable(results)
    known = read(results) if results.exists() else []
    with terminal.Steps(console) as steps:
        for found in run(wanted, network, how, context(terminal.command(), how.seed), known, steps):
            append(results, found)
            known += found
    # Of this grid: the file may hold others.
    names = {(cell.variant, str(setting(cell, network, how))) for cell in wanted}
    page = write([record for record in known if (record.variant, str(record.setting)) in names], out, published)
    console.print(f"records: {results}\nfigures: {page}", soft_wrap=True)
