"""Flags that several commands of `greenformers speech` share."""

from typing import Annotated

import typer

Gate = Annotated[
    bool,
    typer.Option(help="Write nothing of a piece of sound that is silent, or whose words are more likely wrong."),
]

MinConfidence = Annotated[
    float | None,
    typer.Option(help="Least confidence, 0 to 1, of a word that is written; all are written if not given."),
]

Batch = Annotated[int, typer.Option(help="Recordings, or pieces of a recording, in a batch.")]
