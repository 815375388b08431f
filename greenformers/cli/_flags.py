"""Flags that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Causal = Annotated[
    bool, typer.Option("--causal", help="Causal attention: a position attends to itself and to those before it.")
]
Folder = Annotated[
    Path | None, typer.Option(help="Folder with the files of the data set, unless they come with greenformers.")
]
Batch = Annotated[int, typer.Option(help="Examples in a batch.")]
Country = Annotated[str, typer.Option(help="Country of the electricity, as a 3-letter ISO code, for the emissions.")]
Results = Annotated[Path | None, typer.Option(help="JSONL file that the records are appended to.")]
