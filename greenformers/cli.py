"""The command line. Heavy imports are inside the commands, so that --help answers at once."""

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

app = typer.Typer(
    name="greenformers",
    help="A transformer goes in; a measured, greener transformer comes out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Data = Annotated[str, typer.Option(help="Data set: digits (embedded) or mnist.")]
Folder = Annotated[Path | None, typer.Option(help="Folder with the data set's files.")]
Limit = Annotated[int | None, typer.Option(help="At most so many training, and so many test examples.")]
Pool = Annotated[int, typer.Option(help="Side of the square of pixels averaged into one.")]
Hidden = Annotated[int, typer.Option(help="Width d of the network.")]
Layers = Annotated[int, typer.Option(help="Number of layers.")]
Heads = Annotated[int, typer.Option(help="Number of heads, a divisor of the width.")]
FeedForward = Annotated[int, typer.Option(help="Width f of the feed-forward blocks.")]
Rank = Annotated[int, typer.Option(help="Rank of the low-rank maps of lrt.")]
K = Annotated[int, typer.Option("--k", help="Projected length k of linformer.")]
Epochs = Annotated[int, typer.Option(help="Passes over the training set.")]
Batch = Annotated[int, typer.Option(help="Examples a step.")]
Rate = Annotated[float, typer.Option(help="Highest learning rate.")]
Seed = Annotated[int, typer.Option(help="Of weights, order and dropout.")]


@app.command()
def compare(
    data: Data = "digits",
    folder: Folder = None,
    limit: Limit = None,
    pool: Pool = 1,
    variants: Annotated[
        str, typer.Option(help="Names, with commas: transformer, lrt, an attention, or lrt+ and an attention.")
    ] = "transformer,lrt,linformer,lrt+linformer",
    hidden: Hidden = 64,
    layers: Layers = 2,
    heads: Heads = 4,
    feed_forward: FeedForward = 256,
    rank: Rank = 16,
    k: K = 16,
    epochs: Epochs = 25,
    batch: Batch = 64,
    learning_rate: Rate = 2e-3,
    seed: Seed = 0,
    full_size: Annotated[bool, typer.Option(help="Also measure one layer of d 768.")] = True,
    country: Annotated[str, typer.Option(help="Whose electricity: a 3-letter ISO code.")] = "USA",
    results: Annotated[Path, typer.Option(help="File the records are added to.")] = Path("results/compare.jsonl"),
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("report"),
) -> None:
    """Train variants alike on real images, measure them side by side, and write a report."""
    from greenformers.advise.compare import Network
    from greenformers.advise.compare import compare as run
    from greenformers.data import load
    from greenformers.measure.record import append, context
    from greenformers.report.page import write
    from greenformers.report.table import tables
    from greenformers.train.fit import Schedule

    _quiet()
    console = _console()
    schedule = Schedule(epochs=epochs, batch_size=batch, learning_rate=learning_rate, seed=seed)
    network = Network(hidden, layers, heads, feed_forward, rank, k)
    splits = load(data, folder, limit, pool, seed)
    _check_writable(results, out)
    found = run(
        splits,
        [name.strip() for name in variants.split(",")],
        network,
        schedule,
        country=country,
        full_size=full_size,
        about=context(_command(), seed),
        console=console,
    )
    # Shown first: should the disk be full, the figures are at least on the screen.
    _show(console, tables(found, console.width))
    append(results, found)
    page = write(found, out)
    console.print(f"records: {results}\nreport:  {page}", soft_wrap=True)


@app.command()
def train(
    variant: Annotated[str, typer.Argument(help="transformer, lrt, an attention, or lrt+ and an attention.")],
    out: Annotated[Path, typer.Option(help="New folder for the trained model.")],
    data: Data = "digits",
    folder: Folder = None,
    limit: Limit = None,
    pool: Pool = 1,
    hidden: Hidden = 64,
    layers: Layers = 2,
    heads: Heads = 4,
    feed_forward: FeedForward = 256,
    rank: Rank = 16,
    k: K = 16,
    epochs: Epochs = 25,
    batch: Batch = 64,
    learning_rate: Rate = 2e-3,
    seed: Seed = 0,
) -> None:
    """Train one variant and save it, for `from_pretrained`."""
    from greenformers.advise.compare import Network
    from greenformers.data import load
    from greenformers.measure.parameters import parameters
    from greenformers.measure.quality import accuracy, predict
    from greenformers.train.fit import Schedule, fit
    from greenformers.train.save import check_new, save

    _quiet()
    console = _console()
    check_new(out)
    splits = load(data, folder, limit, pool, seed)
    schedule = Schedule(epochs=epochs, batch_size=batch, learning_rate=learning_rate, seed=seed)
    model = Network(hidden, layers, heads, feed_forward, rank, k).build(variant, splits, seed)
    history = fit(model, splits.train, splits.test, schedule, label=variant, console=console)
    score = accuracy(*predict(model, splits.test, batch_size=256))
    save(model, out)
    console.print(
        f"{variant}: {parameters(model):,} parameters, test accuracy {score:.1f} %, "
        f"{history.seconds:.1f} s of training\nmodel: {out}",
        soft_wrap=True,
    )


@app.command()
def report(
    records: Annotated[Path, typer.Argument(help="JSONL file of records.")],
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("report"),
    markdown: Annotated[bool, typer.Option("--markdown", help="Only print the table, as Markdown.")] = False,
) -> None:
    """Draw the newest run of each benchmark in a file of records."""
    from greenformers.measure.record import newest, read
    from greenformers.report.page import write
    from greenformers.report.table import markdown as table_in_markdown
    from greenformers.report.table import tables

    found = newest(read(records))
    if markdown:
        print(table_in_markdown(found), end="")
        return
    console = _console()
    page = write(found, out)
    _show(console, tables(found, console.width))
    console.print(f"report:  {page}", soft_wrap=True)


def _console() -> "Console":
    """A console as wide as the terminal; wide enough for five variants where the output goes elsewhere."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def _show(console: "Console", parts: "Iterable[Table]") -> None:
    for part in parts:
        console.print(part)


def _quiet() -> None:
    """Leave the terminal to our own progress bars."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def _check_writable(results: Path, out: Path) -> None:
    """Find out before the work, not after it, that its results cannot be written."""
    out.mkdir(parents=True, exist_ok=True)
    results.parent.mkdir(parents=True, exist_ok=True)
    existed = results.exists()
    with results.open("ab"):
        pass
    if not existed:
        results.unlink()


def _command() -> str:
    """The command as typed; of paths only the last part, for records travel."""
    words = [Path(word).name if "/" in word and Path(word).is_absolute() else word for word in sys.argv[1:]]
    return shlex.join(["greenformers", *words])


def main() -> None:
    """Run the command line. What a user can mend is one line and exit code 2."""
    try:
        app()
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
    except ValueError as error:
        _fail(str(error))


def _fail(message: str) -> None:
    print(f"greenformers: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
