"""Flags that several commands of `greenformers speech` have."""

from typing import Annotated

import typer

Batch = Annotated[int, typer.Option(help="Recordings, or pieces of one, at a time.")]
