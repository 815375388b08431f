"""`greenformers compare`. Heavy imports are inside the command, so that --help answers at once."""

from pathlib import Path
from typing import Annotated

import typer

from greenformers.advise.compare_options import Size
from greenformers.cli import _terminal as terminal
from greenformers.cli._flags import Batch, Folder
from greenformers.cli._options import from_fields

ORDER = 40
GROUP = "Train a model of your own"
EXAMPLES = (
    "greenformers compare --data digits",
    "greenformers compare --data mnist --folder DATA --variants transformer,linformer --epochs 5",
)


@from_fields
def compare(
    *,
    data: Annotated[str, typer.Option(help="Data set: digits (embedded) or mnist.")] = "digits",
    folder: Folder = None,
    limit: Annotated[int | None, typer.Option(help="At most so many training, and so many test examples.")] = None,
    pool: Annotated[int, typer.Option(help="Side of the square of pixels averaged into one.")] = 1,
    variants: Annotated[
        str, typer.Option(help="Names, with commas: transformer, lrt, an attention, or lrt+ and an attention.")
    ] = "transformer,lrt,linformer,lrt+linformer",
    size: Size,
    epochs: Annotated[int, typer.Option(help="Passes over the training set.")] = 25,
    batch: Batch = 64,
    learning_rate: Annotated[float, typer.Option(help="Highest learning rate.")] = 2e-3,
    seed: Annotated[int, typer.Option(help="Of weights, order and dropout.")] = 0,
    full_size: Annotated[bool, typer.Option(help="Also measure one layer of d 768.")] = True,
    country: Annotated[str, typer.Option(help="Whose electricity: a 3-letter ISO code.")] = "USA",
    results: Annotated[Path, typer.Option(help="File the records are added to.")] = Path("results/compare.jsonl"),
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("report"),
) -> None:
    """Train variants alike on real images, measure them side by side, and write a report.

    A run that was stopped goes on with the same command.
    """
    from greenformers.advise.compare import Network
    from greenformers.advise.compare import compare as run
    from greenformers.advise.unfinished import Unfinished
    from greenformers.data import load_images
    from greenformers.measure.record import append, context
    from greenformers.report.page import write
    from greenformers.report.table import tables
    from greenformers.train.fit import Schedule

    terminal.quiet()
    console = terminal.console()
    schedule = Schedule(epochs=epochs, batch_size=batch, learning_rate=learning_rate, seed=seed)
    network = Network(**vars(size))
    splits = load_images(data, folder, limit, pool, seed)
    out.mkdir(parents=True, exist_ok=True)
    terminal.check_writable(results)
    unfinished = Unfinished(out / "unfinished")
    with terminal.resumable("the same command goes on"), terminal.Steps(console) as steps:
        found = run(
            splits,
            [name.strip() for name in variants.split(",")],
            network,
            schedule,
            country=country,
            full_size=full_size,
            about=context(terminal.command(), seed),
            console=console,
            unfinished=unfinished,
            progress=steps,
        )
    # Shown first: should the disk be full, the figures are at least on the screen.
    terminal.show(console, tables(found, console.width))
    append(results, found)
    page = write(found, out)
    unfinished.remove()
    console.print(f"records: {results}\nreport:  {page}", soft_wrap=True)
