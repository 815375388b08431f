"""`greenformers genome study length`. Heavy imports are inside the command, so that --help answers at once."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._flags import Results
from greenformers.cli._options import from_fields
from greenformers.cli.genome.study._study import References
from greenformers.genome.longest_options import Size

ORDER = 30
EXAMPLES = ("greenformers genome study length --tokens tokens --sequences apoe.tsv --out length",)


@from_fields
def length(
    *,
    tokens: Annotated[Path, typer.Option(help="Folder of a tokenizer of subwords, by `genome tokenize`.")],
    sequences: Annotated[
        Path, typer.Option(help="File of `genome encode`, by which the mean characters of a token are counted.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the pictures.")] = Path("length"),
    variants: Annotated[
        str, typer.Option(help="Networks, with commas; transformer (eager) has no fused attention.")
    ] = "transformer (eager),transformer,linformer",
    mode: Annotated[
        str, typer.Option(help="Work that is counted: training, inference, or both with a comma.")
    ] = "training",
    memory: Annotated[
        float | None,
        typer.Option(help="Memory budget in GiB; by default that of eager attention at 1,024 nucleotides."),
    ] = None,
    size: Size,
    results: Results = None,
    references: References = None,
) -> None:
    """Find the longest sequence within a memory budget, with one token for each nucleotide and with subwords.

    Bytes are counted from the shapes of every operation: tensors of that
    size are never computed.
    """
    from itertools import islice

    from transformers import PreTrainedTokenizerFast

    from greenformers.genome import encoded_file, longest
    from greenformers.genome.tokenizer import SPECIAL, base_tokens, mean_length
    from greenformers.measure.record import append, context
    from greenformers.report import published
    from greenformers.report.fit import fitted
    from greenformers.report.lengths import lengths, table
    from greenformers.report.plot import save

    terminal.quiet()
    terminal.check_folder(references, "references")
    if not (tokens / "tokenizer.json").is_file():
        raise ValueError(f"tokens must be a folder of `genome tokenize`, got {str(tokens)!r}")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tokens, local_files_only=True)
    about = encoded_file.settings_of(sequences)
    column, alphabet = ("sequence", str(about["alphabet"])) if about["mode"] == "diplotype" else ("first", None)
    letters = len(base_tokens(alphabet)) + len(SPECIAL)
    if len(tokenizer) <= letters:
        raise ValueError(f"tokens must be subwords, more than {letters}; {tokens} has {len(tokenizer)}")
    mean = mean_length(tokenizer, [row[column] for row in islice(encoded_file.load(sequences), 100)])
    chosen, modes = ([word.strip() for word in text.split(",") if word.strip()] for text in (variants, mode))
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is not a folder")
    budget = None if memory is None else memory * 2**30
    vocabularies = {letters: 1.0, len(tokenizer): mean}
    rows = longest.rows(chosen, modes, size, vocabularies, budget)
    if results is not None:
        terminal.check_results(results)
    with terminal.Steps(terminal.console(stderr=True)) as steps:
        longest_sequences = longest.study(rows, size, vocabularies, budget=budget, progress=partial(steps, "rows"))
        names = {letters: "one a nucleotide", len(tokenizer): "subwords"}
        records = longest.records(list(longest_sequences), size, names, context(terminal.command(), 0))
    theirs = {row["setting"]: float(row["max_nucleotides"]) for row in published.rows(references, published.MAX_LENGTH)}
    console = terminal.console()
    out.mkdir(parents=True, exist_ok=True)
    for work in dict.fromkeys(modes):
        own = [record for record in records if record.setting["mode"] == work]
        room = own[0].setting["memory_gib"]
        title = f"{work.capitalize()} within {room} GiB, batch {size.batch}, {mean:.2f} characters a subword"
        terminal.show(console, fitted(table(title, own, theirs), console.width, repeated=3))
        save(lengths(title, own, theirs), out / f"{work}.png")
        print(f"picture: {out / f'{work}.png'}")
    if line := published.absent(references, (published.MAX_LENGTH,)):
        print(line)
    if results is not None:
        append(results, records)
