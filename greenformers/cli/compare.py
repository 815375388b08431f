"""`greenformers compare`. Heavy imports are inside the command, so that --help answers at once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from greenformers.advise.compare_options import Size
from greenformers.cli import _terminal as terminal
from greenformers.cli._flags import Batch, Country, Folder
from greenformers.cli._options import from_fields

ORDER = 40
GROUP = "Train a model of your own"
EXAMPLES = (
    "greenformers compare --data digits",
    "greenformers compare --data mnist --folder DATA --variants transformer,linformer --epochs 5",
)


@from_fields
def compare(
    typed: typer.Context,
    *,
    data: Annotated[
        str, typer.Option(help="Data set of images: digits (comes with greenformers), mnist, ...")
    ] = "digits",
    folder: Folder = None,
    limit: Annotated[int | None, typer.Option(help="Largest number of training, and of test examples.")] = None,
    pool: Annotated[int, typer.Option(help="Side of the squares of pixels that are averaged into one.")] = 1,
    variants: Annotated[
        str | None,
        typer.Option(
            help="Variants, with commas: transformer, lrt, an attention mechanism, or both, as lrt+linformer; narrow "
            "or narrow_flops, a dense network of smaller width with as many parameters or FLOPs as lrt; by default "
            "transformer,lrt,narrow,linformer,lrt+linformer, without narrow where it would be too narrow."
        ),
    ] = None,
    size: Size,
    epochs: Annotated[int, typer.Option(help="Passes over the training set.")] = 25,
    batch: Batch = 64,
    learning_rate: Annotated[float, typer.Option(help="Highest learning rate.")] = 2e-3,
    optimizer: Annotated[
        str | None,
        typer.Option(
            help="Optimiser: muon, of the matrices inside the layers, and AdamW of the rest; or adamw; by default "
            "muon, but adamw with low_rank_training spectral."
        ),
    ] = None,
    low_rank_training: Annotated[
        str | None,
        typer.Option(
            help="Way to train the variants with low-rank layers: spectral or dense_first, see `greenformers train "
            "--help`; by default as all others."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of the initial weights, of the order of the examples and of dropout.")
    ] = 0,
    full_size: Annotated[bool, typer.Option(help="Also measure one layer of width 768.")] = True,
    country: Country = "USA",
    results: Annotated[Path, typer.Option(help="JSONL file that the records are appended to.")] = Path(
        "results/compare.jsonl"
    ),
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("report"),
) -> None:
    """Train variants on the same images in the same way, measure them side by side, and write a report.

    A run that was stopped goes on with the same command.
    """
    from greenformers.advise.compare import Network, usual
    from greenformers.advise.compare import compare as run
    from greenformers.advise.unfinished import Unfinished
    from greenformers.data import load_images
    from greenformers.measure.record import append, context
    from greenformers.report.page import write
    from greenformers.report.table import tables
    from greenformers.train.schedule import Schedule

    terminal.quiet()
    console = terminal.console()
    schedule = Schedule(
        epochs=epochs,
        batch_size=batch,
        learning_rate=learning_rate,
        optimizer=optimizer or ("adamw" if low_rank_training == "spectral" else "muon"),
        low_rank_training=low_rank_training,
        seed=seed,
    )
    network = Network(**vars(size))
    splits = load_images(data, folder, limit, pool, seed)
    if variants is None:
        names = usual(splits, network, lambda words: console.print(words, markup=False, soft_wrap=True))
    else:
        names = [name.strip() for name in variants.split(",")]
        _check_used(names, typed)
    terminal.check_page(out, "out")
    terminal.check_results(results)
    unfinished = Unfinished(out / "unfinished")
    with terminal.resumable("the same command goes on"), terminal.Steps(console) as steps:
        records = run(
            splits,
            names,
            network,
            schedule,
            country=country,
            full_size=full_size,
            about=context(terminal.command(), seed),
            console=console,
            unfinished=unfinished,
            progress=steps,
        )
    # Results are shown before they are written: should the disk be full, they are at least on the screen.
    terminal.show(console, tables(records, console.width))
    append(results, records)
    page = write(records, out)
    unfinished.remove()
    console.print(f"records: {results}\nreport:  {page}", markup=False, soft_wrap=True)


def _check_used(variants: Sequence[str], typed: typer.Context) -> None:
    """Raise ValueError for a rank that was typed where no variant has low-rank layers, and for a k that none has."""
    from greenformers.model.variant import rank_option, slots

    used = {
        "rank": (any(slots(name, rank=1, narrow=True)["rank"] for name in variants), "lrt"),
        "k": (any(rank_option(name) for name in variants), "an attention that keeps a part of full attention"),
    }
    for name, (by_one, purpose) in used.items():
        if terminal.is_typed(typed, name) and not by_one:
            raise ValueError(f"--{name} is for {purpose}, the variants are {', '.join(variants)}")
