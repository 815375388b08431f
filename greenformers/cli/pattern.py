"""`greenformers pattern`. Heavy imports are inside the command, so that --help answers at once."""

from pathlib import Path
from typing import Annotated

import typer

from greenformers.cli import _terminal as terminal
from greenformers.cli._flags import Causal

ORDER = 110
GROUP = "Measure and choose"
EXAMPLES = ("greenformers pattern bigbird --length 1024 --out bigbird.png",)


def pattern(
    name: Annotated[str, typer.Argument(help="Attention mechanism with a sparse pattern, such as longformer.")],
    length: Annotated[int, typer.Option(help="Sequence length N.")],
    out: Annotated[Path, typer.Option(help="PNG file of the picture.")],
    option: Annotated[
        list[str] | None, typer.Option(help="Option of the mechanism, as name=value; may be repeated.")
    ] = None,
    heads: Annotated[int, typer.Option(help="Number of heads.")] = 4,
    layers: Annotated[int, typer.Option(help="Number of layers.")] = 1,
    causal: Causal = False,
) -> None:
    """Draw which positions a sparse attention pattern lets attend to which, and print its density and cost."""
    from greenformers.measure.connectivity import connectivity
    from greenformers.report.curves import save
    from greenformers.report.fit import fitted
    from greenformers.report.pattern import figure, table

    console = terminal.console()
    if out.suffix != ".png":
        raise ValueError(f"out must end in .png, got {out.name!r}")
    if not out.parent.is_dir():
        raise ValueError(f"{out.parent} is not a folder")
    options = terminal.pairs("option", option or [])
    with terminal.Steps(console) as steps:
        matrices = connectivity(
            name, length, options, heads=heads, layers=layers, causal=causal, progress=steps,
        )  # fmt: skip
    terminal.show(console, fitted(table(matrices), console.width))
    save(figure(matrices), out)
    console.print(f"picture: {out}", markup=False, soft_wrap=True)
