"""Flags that several commands of `greenformers genome` have."""

from pathlib import Path
from typing import Annotated

import typer

FASTA = Annotated[Path, typer.Option("--reference", help="Reference genome, or a part of it: FASTA.")]
Where = Annotated[
    str | None, typer.Option("--region", help="Such as 19:45409039-45412650; by default the only sequence there is.")
]
