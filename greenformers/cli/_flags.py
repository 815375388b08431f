"""Flags that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

Causal = Annotated[bool, typer.Option("--causal", help="A position sees only those before it.")]
Folder = Annotated[Path | None, typer.Option(help="Folder with the data set's files.")]
Batch = Annotated[int, typer.Option(help="Examples a step.")]
