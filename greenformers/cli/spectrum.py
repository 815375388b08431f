"""`greenformers spectrum`. Heavy imports are inside the command, so that --help answers at once."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from greenformers.cli import _terminal as terminal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

ORDER = 90
GROUP = "Measure and choose"
EXAMPLES = ("greenformers spectrum MODEL --texts texts.txt",)


def spectrum(
    model: Annotated[str, typer.Argument(help="Folder of a model of transformers, or its name on the hub.")],
    texts: Annotated[Path, typer.Option(help="Texts, a line each; also .gz and .xz.")],
    length: Annotated[int, typer.Option(help="Tokens in a block of running text.")] = 512,
    index: Annotated[int, typer.Option(help="How many singular values the table and the heat map add up.")] = 128,
    limit: Annotated[int, typer.Option(help="At most so many blocks.")] = 100,
    share: Annotated[float, typer.Option(help="What the suggested k keeps of the singular values' sum.")] = 0.9,
    name: Annotated[
        str | None, typer.Option(help="What the model is called in figure and records; by default as its folder.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the figure and its page.")] = Path("spectrum"),
    results: Annotated[Path | None, typer.Option(help="File the records are added to.")] = None,
) -> None:
    """Measure the singular values of a trained model's attention over real text, and suggest a k for each layer."""
    from itertools import islice

    from greenformers.checkpoint.pretrained import model_name, pretrained
    from greenformers.data._texts import read_texts
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
    seen = read_texts(texts)
    network, tokenizer = pretrained(model, needs_tokenizer=True)
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is not a folder")
    if results is not None:
        terminal.check_writable(results)
    blocks = islice(measure.blocks(seen.lines, cast(Any, tokenizer), length), limit)
    with terminal.Steps(console) as steps:
        found = measure.attention_spectrum(network, _counted(blocks, limit, steps))
    # Shown first: should the disk be full, the figures are at least on the screen.
    terminal.show(console, fitted(table(found, index, share), console.width))
    about = context(terminal.command(), 0)
    made = measure.records(found, name or model_name(model), seen.name, index=index, share=share, about=about)
    if results is not None:
        append(results, made)
    page = write(found, made, index, share, out)
    console.print(
        f"{found.blocks} blocks of {length} tokens\nfigure: {out / 'spectrum.png'}\nreport: {page}", soft_wrap=True
    )


def _counted(blocks: "Iterable[Tensor]", limit: int, steps: terminal.Steps) -> "Iterator[Tensor]":
    for done, block in enumerate(blocks):
        steps("blocks", done / limit)
        yield block
    steps("blocks", 1.0)
