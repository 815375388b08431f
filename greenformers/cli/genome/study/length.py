"""`greenformers genome study length`. Heavy imports are inside the command, so that --help answers at once."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._options import from_fields
from greenformers.cli.genome.study._study import References, Results
from greenformers.genome.longest_options import Size

ORDER = 30
EXAMPLES = ("greenformers genome study length --tokens tokens --sequences apoe.tsv --out length",)


@from_fields
def length(
    *,
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
    size: Size,
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
    from greenformers.report.fit import fitted
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
    console = terminal.console()
    out.mkdir(parents=True, exist_ok=True)
    for one in dict.fromkeys(modes):
        own = [record for record in made if record.setting["mode"] == one]
        room = own[0].setting["memory_gib"]
        title = f"{one.capitalize()} within {room} GiB, batch {size.batch}, {mean:.2f} characters a subword"
        terminal.show(console, fitted(table(title, own, theirs), console.width, repeated=3))
        save(lengths(title, own, theirs), out / f"{one}.png")
        print(f"picture: {out / f'{one}.png'}")
    if results is not None:
        append(results, made)
