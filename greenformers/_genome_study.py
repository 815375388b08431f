"""Studies of genomes: surroundings of a gene, pre-training, length. Heavy imports are inside the commands."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from greenformers import _terminal as terminal
from greenformers._terminal import FeedForward, Heads, Hidden, Layers
from greenformers._training import training
from greenformers.genome.settings import Finetuning

if TYPE_CHECKING:
    from collections.abc import Callable

    from greenformers.measure.record import Record

app = typer.Typer(
    help="Surroundings of a gene (figure 5.5), pre-training (table 5.2), length (table 5.3).", no_args_is_help=True
)

Splits = (Annotated[int, typer.Option(help="Draws of train, valid and test people, of each point.")], 5)
Known = (Annotated[str, typer.Option(help="Positions of known variants, for a baseline of their own.")], "")
Results = Annotated[Path | None, typer.Option(help="File the records are added to.")]
References = Annotated[Path | None, typer.Option(help="Folder with the published tables, to print beside.")]


def _surroundings(
    given: dict[str, Any], out: Path, resume: bool, margins: str, splits: int, known: str, results: Path | None
) -> None:
    from greenformers.genome.studies import MARGINS, surroundings

    words = [word.strip() for word in margins.split(",") if word.strip()]
    if not all(word.isdecimal() for word in words):
        raise ValueError(f"margins must be whole numbers from 0 on, with commas between; got {margins!r}")
    chosen = [int(word) for word in words] or list(MARGINS)
    positions = terminal.numbers("known", known)
    _study(
        lambda settings, console: surroundings(settings, chosen, splits, out, console, positions),
        Finetuning(**given), out, resume, results, "margin", "Positions more on each side",
    )  # fmt: skip


def _pretraining(
    given: dict[str, Any], out: Path, resume: bool, splits: int, known: str, results: Path | None,
    references: Path | None,
) -> None:  # fmt: skip
    from greenformers.genome.studies import pretraining
    from greenformers.report import published

    positions = terminal.numbers("known", known)
    _study(
        lambda settings, console: pretraining(settings, splits, out, console, positions),
        Finetuning(**given), out, resume, results, "pretraining_steps", "Steps of pre-training",
    )  # fmt: skip
    for row in published.rows(references, "thesis_table5_2_alzheimer.csv"):
        print(f"thesis: {row['model']}: AUC {100 * float(row['auc']):.1f} %, F1 {100 * float(row['f1']):.1f} %")


def _study(
    run: "Callable[[Finetuning, Any], list[Record]]",
    settings: Finetuning,
    out: Path,
    resume: bool,
    results: Path | None,
    key: str,
    across: str,
) -> None:
    from rich.table import Table

    from greenformers.measure.record import append, context
    from greenformers.report.draws import draws, listed
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
    console.print(table)
    out.mkdir(parents=True, exist_ok=True)
    picture = out / "study.png"
    save(draws(across, across, found, key, metrics=("auc", "f1")), picture)
    print(f"picture: {picture}")
    if results is not None:
        about = context(terminal.command(), 0)
        append(results, [replace(record, context=about) for record in found])


app.command("region")(
    training(
        Finetuning,
        """Fine-tune on a gene (--region) and on more and more of what is around it, beside logistic regression.

    OUT holds the runs of each margin and study.png. Work that was
    stopped goes on with --resume.
    """,
        _surroundings,
        margins=(Annotated[str, typer.Option(help="Positions more on each side; 0 to 15000 by default.")], ""),
        splits=Splits,
        known=Known,
        results=(Results, None),
    )
)
app.command("steps")(
    training(
        Finetuning,
        """Fine-tune from nothing, from every snapshot of a pre-training run (--init) and from its end.

    Snapshots are made by `genome pretrain --snapshots`. OUT holds the
    runs of each and study.png. Work that was stopped goes on with
    --resume.
    """,
        _pretraining,
        splits=Splits,
        known=Known,
        results=(Results, None),
        references=(References, None),
    )
)


@app.command()
def length(
    tokens: Annotated[Path, typer.Option(help="Folder of `genome tokenize`: subwords.")],
    sequences: Annotated[Path, typer.Option(help="What `genome encode` wrote: how many characters a token has.")],
    out: Annotated[Path, typer.Option(help="Folder of the picture.")] = Path("length"),
    variants: Annotated[
        str, typer.Option(help="Networks, with commas between; transformer (eager) has no fused attention.")
    ] = "transformer (eager),transformer,linformer",
    mode: Annotated[str, typer.Option(help="training, inference, or both with a comma between.")] = "training",
    memory: Annotated[
        float | None, typer.Option(help="GiB; by default what eager attention needs for 1,024 nucleotides.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Sequences at once.")] = 16,
    hidden: Hidden = 768,
    layers: Layers = 12,
    heads: Heads = 12,
    feed_forward: FeedForward = 3072,
    k: Annotated[int, typer.Option(help="Projected length k of linformer.")] = 256,
    rank: Annotated[int, typer.Option(help="Rank of lrt.")] = 64,
    dropout: Annotated[float, typer.Option(help="Dropout after the embedding and each block.")] = 0.1,
    results: Results = None,
    references: References = None,
) -> None:
    """Find the longest sequence within a memory budget, with one token a nucleotide and with subwords.

    Counted from shapes, operation by operation: nothing as large is
    computed.
    """
    from itertools import islice

    from transformers import PreTrainedTokenizerFast

    from greenformers.genome import encode, longest
    from greenformers.genome.tokenizer import SPECIAL, base_tokens, mean_length
    from greenformers.measure.record import append, context
    from greenformers.report import published
    from greenformers.report.lengths import lengths, table
    from greenformers.report.plot import save

    terminal.quiet()
    if not (tokens / "tokenizer.json").is_file():
        raise ValueError(f"tokens must be a folder of `genome tokenize`, got {str(tokens)!r}")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tokens, local_files_only=True)
    about = encode.settings_of(sequences)
    column, alphabet = ("sequence", str(about["alphabet"])) if about["mode"] == "diplotype" else ("first", None)
    letters = len(base_tokens(alphabet)) + len(SPECIAL)
    if len(tokenizer) <= letters:
        raise ValueError(f"tokens must be subwords, more than {letters}; {tokens} has {len(tokenizer)}")
    mean = mean_length(tokenizer, [row[column] for row in islice(encode.load(sequences), 100)])
    size = longest.Size(hidden, layers, heads, feed_forward, k, rank, dropout, batch)
    chosen, modes = ([word.strip() for word in text.split(",") if word.strip()] for text in (variants, mode))
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is not a folder")
    budget = None if memory is None else memory * 2**30
    vocabularies = {letters: 1.0, len(tokenizer): mean}
    rows = longest.rows(chosen, modes, size, vocabularies, budget)
    if results is not None:
        terminal.check_writable(results)
    with terminal.Steps(terminal.console(stderr=True)) as steps:
        found = longest.study(rows, size, vocabularies, budget=budget, progress=partial(steps, "rows"))
        names = {letters: "one a nucleotide", len(tokenizer): "subwords"}
        made = longest.records(list(found), size, names, context(terminal.command(), 0))
    theirs = {
        row["setting"]: float(row["max_nucleotides"])
        for row in published.rows(references, "thesis_table5_3_max_length.csv")
    }
    out.mkdir(parents=True, exist_ok=True)
    for one in dict.fromkeys(modes):
        own = [record for record in made if record.setting["mode"] == one]
        room = own[0].setting["memory_gib"]
        title = f"{one.capitalize()} within {room} GiB, batch {batch}, {mean:.2f} characters a subword"
        terminal.console().print(table(title, own, theirs))
        save(lengths(title, own, theirs), out / f"{one}.png")
        print(f"picture: {out / f'{one}.png'}")
    if results is not None:
        append(results, made)
