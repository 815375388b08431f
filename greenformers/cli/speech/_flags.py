"""Flags that several commands of `greenformers speech` share."""

from typing import Annotated

import typer

Batch = Annotated[int, typer.Option(help="Recordings, or pieces of a recording, in a batch.")]
