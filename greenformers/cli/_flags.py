"""Flags that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

Hidden = Annotated[int, typer.Option(help="Width d of the network.")]
Layers = Annotated[int, typer.Option(help="Number of layers.")]
Heads = Annotated[int, typer.Option(help="Number of heads, a divisor of the width.")]
FeedForward = Annotated[int, typer.Option(help="Width f of the feed-forward blocks.")]
Causal = Annotated[bool, typer.Option("--causal", help="A position sees only those before it.")]
Folder = Annotated[Path | None, typer.Option(help="Folder with the data set's files.")]
Batch = Annotated[int, typer.Option(help="Examples a step.")]
