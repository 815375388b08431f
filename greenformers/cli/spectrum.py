"""`greenformers spectrum`. Heavy imports are inside the command, so that --help answers at once."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._flags import Results

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

ORDER = 90
GROUP = "Measure and choose"
EXAMPLES = ("greenformers spectrum MODEL --texts texts.txt",)


def spectrum(
    model: Annotated[str, typer.Argument(help="Folder of a model of transformers, or its name on the hub.")],
    texts: Annotated[Path, typer.Option(help="Texts: a file .txt, .tsv, .jsonl or .parquet, or a folder of them.")],
    length: Annotated[int, typer.Option(help="Tokens in a block of running text.")] = 512,
    index: Annotated[
        int, typer.Option(help="Number of largest singular values that the table and the heat map add up.")
    ] = 128,
    limit: Annotated[int, typer.Option(help="Largest number of blocks.")] = 100,
    share: Annotated[
        float, typer.Option(help="Share of the sum of the singular values that the suggested k holds.")
    ] = 0.9,
    name: Annotated[
        str | None, typer.Option(help="Name of the model in figure and records; by default that of its folder.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the figure and its page.")] = Path("spectrum"),
    results: Results = None,
) -> None:
    """Measure the singular values of a trained model's attention over real text, and suggest a k for each layer."""
    from itertools import islice

    from greenformers.checkpoint.pretrained import model_name, pretrained
    from greenformers.data._read_texts import read_texts
    from greenformers.measure import spectrum as measure
    from greenformers.measure.record import append, context
    from greenformers.report.fit import fitted
    from greenformers.report.spectrum import table, write

    terminal.quiet()
    console = terminal.console()
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    if not 1 <= index <= length:
        raise ValueError(f"index must be in 1..{length}, the length of a block; got {index}")
    if not 0 < share <= 1:
        raise ValueError(f"share must be in (0, 1], got {share}")
    seen, _ = read_texts(texts, labelled=False)
    network, tokenizer = pretrained(model, needs_tokenizer=True)
    terminal.check_page(out, "out")
    if results is not None:
        terminal.check_results(results)
    blocks = islice(measure.blocks(seen.lines, cast(Any, tokenizer), length), limit)
    with terminal.Steps(console) as steps:
        measured = measure.attention_spectrum(network, _counted(blocks, limit, steps))
    # Results are shown before they are written: should the disk be full, they are at least on the screen.
    terminal.show(console, fitted(table(measured, index, share), console.width))
    about = context(terminal.command(), 0)
    records = measure.records(measured, name or model_name(model), seen.name, index=index, share=share, about=about)
    if results is not None:
        append(results, records)
    page = write(measured, records, index, share, out)
    console.print(
        f"{measured.blocks} blocks of {length} tokens\nfigure: {out / 'spectrum.png'}\nreport: {page}",
        markup=False, soft_wrap=True,
    )  # fmt: skip


def _counted(blocks: "Iterable[Tensor]", limit: int, steps: terminal.Steps) -> "Iterator[Tensor]":
    for done, block in enumerate(blocks):
        steps("blocks", done / limit)
        yield block
    steps("blocks", 1.0)
