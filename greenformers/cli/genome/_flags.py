"""Flags that several commands of `greenformers genome` share."""

from pathlib import Path
from typing import Annotated

import typer

FASTA = Annotated[Path, typer.Option("--reference", help="FASTA file of the reference genome, or of a part of it.")]
Where = Annotated[
    str | None,
    typer.Option("--region", help="Region, such as 19:45409039-45412650; by default the only sequence of the file."),
]
