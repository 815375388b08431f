"""Flags that several commands of `greenformers genome` have."""

from pathlib import Path
from typing import Annotated

import typer

FASTA = Annotated[Path, typer.Option("--reference", help="Reference genome, or a part of it: FASTA.")]
Where = Annotated[
    str | None, typer.Option("--region", help="Such as 19:45409039-45412650; by default the only sequence there is.")
]
Mode = Annotated[str, typer.Option(help="diplotype (66 characters) or haplotype (5).")]
Alphabet = Annotated[str, typer.Option(help="Characters of the pairs: iupac, or thesis (table 5.1).")]
Seed = Annotated[int, typer.Option(help="Of what is drawn.")]
