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
LengthPenalty = Annotated[
    float | None,
    typer.Option(
        help="Exponent of the length that the log probability of a beam is divided by; above 1 for longer texts. "
        "1 if not given."
    ),
]
NoRepeat = Annotated[int | None, typer.Option(help="Length of the n-grams, in tokens, that no text has twice.")]
MinNewTokens = Annotated[int | None, typer.Option(help="Smallest number of tokens that are generated before the end.")]
