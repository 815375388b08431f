"""The command line. Heavy imports are inside the commands, so that --help answers at once."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from greenformers import _terminal as terminal
from greenformers._compress import COMMANDS as COMPRESSING
from greenformers._export import export
from greenformers._genome import app as genome
from greenformers._speech import app as speech
from greenformers._study import COMMANDS
from greenformers._terminal import FeedForward, Heads, Hidden, Layers
from greenformers._training import training
from greenformers.train.settings import Settings

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
    from greenformers.data import load_images
    from greenformers.measure.record import append, context
    from greenformers.report.page import write
    from greenformers.report.table import tables
    from greenformers.train.fit import Schedule

    terminal.quiet()
    console = terminal.console()
    schedule = Schedule(epochs=epochs, batch_size=batch, learning_rate=learning_rate, seed=seed)
    network = Network(hidden, layers, heads, feed_forward, rank, k)
    splits = load_images(data, folder, limit, pool, seed)
    out.mkdir(parents=True, exist_ok=True)
    terminal.check_writable(results)
    found = run(
        splits,
        [name.strip() for name in variants.split(",")],
        network,
        schedule,
        country=country,
        full_size=full_size,
        about=context(terminal.command(), seed),
        console=console,
    )
    # Shown first: should the disk be full, the figures are at least on the screen.
    terminal.show(console, tables(found, console.width))
    append(results, found)
    page = write(found, out)
    console.print(f"records: {results}\nreport:  {page}", soft_wrap=True)


app.command("train")(
    training(
        Settings,
        """Train a network: settings from a file, from flags, or flags over a file.

    The run folder OUT holds run.json (all settings), metrics.jsonl,
    curves.png, scores.json and model/, for `from_pretrained`;
    checkpoints/ while it lasts.

    A run that was stopped goes on with --resume.

    Several processes: start it with `accelerate launch` (data-parallel
    or FSDP), or with torchrun and --micro-batches (pipeline).
    """,
    )
)


@app.command()
def evaluate(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    folder: Folder = None,
    beams: Annotated[int, typer.Option(help="seq2seq: width of the beam.")] = 4,
    batch: Batch = 64,
    samples: Annotated[int, typer.Option(help="seq2seq: how many translations to show.")] = 3,
    results: Annotated[Path | None, typer.Option(help="File the records are added to.")] = None,
) -> None:
    """Score a trained run on a split of its data set."""
    from greenformers.measure.record import append, context
    from greenformers.train.evaluate import evaluate as scored
    from greenformers.train.evaluate import records

    terminal.quiet()
    console = terminal.console()
    scores, shown = scored(run_folder, split, folder=folder, beams=beams, batch_size=batch)
    for text in shown[:samples]:
        console.print(text, markup=False, soft_wrap=True)
    for name, value in scores.items():
        console.print(f"{split} {name}: {value:.4g}")
    if results is not None:
        found = records(run_folder, split, scores)
        about = context(terminal.command(), 0)
        append(results, [replace(record, context=about) for record in found])


@app.command()
def generate(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run: causal_lm or seq2seq.")],
    prompt: Annotated[list[str] | None, typer.Option(help="Text to continue or translate; may be repeated.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="File with a prompt a line.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="At most so many tokens are added.")] = None,
    beams: Annotated[int, typer.Option(help="Width of the beam; 1 is greedy.")] = 1,
    sample: Annotated[bool, typer.Option("--sample", help="Draw tokens instead of taking the likeliest.")] = False,
    temperature: Annotated[float, typer.Option(help="Of the draw: below 1 is more cautious.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Draw from so many of the likeliest tokens; 0 for all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens of this total probability.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
) -> None:
    """Continue texts with a trained language model, or translate them with an encoder-decoder."""
    from greenformers.train.evaluate import written

    terminal.quiet()
    texts = [*(prompt or []), *(prompts.read_text().splitlines() if prompts else [])]
    options: dict[str, Any] = {"num_beams": beams, "do_sample": sample, "max_new_tokens": max_new_tokens}
    draw: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    for text in written(run_folder, texts, seed=seed, **options, **(draw if sample else {})):
        print(text)


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
    console = terminal.console()
    page = write(found, out)
    terminal.show(console, tables(found, console.width))
    console.print(f"report:  {page}", soft_wrap=True)


for command in (*COMPRESSING, export, *COMMANDS):
    app.command()(command)
app.add_typer(speech)
app.add_typer(genome)


def main() -> None:
    """Run the command line. What a user can mend is one line and exit code 2."""
    try:
        app()
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
    except ValueError as error:
        _fail(str(error))
    except ImportError as error:
        if "greenformers[" not in str(error):  # what an extra brings is the user's to install
            raise
        _fail(str(error))


def _fail(message: str) -> None:
    # A name may hold what moves the cursor.
    shown = "".join(one for one in " ".join(message.split()) if one.isprintable())
    print(f"greenformers: {shown}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
