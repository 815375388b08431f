"""Flags that several commands of `greenformers speech` have."""

from typing import Annotated

import typer

Width = Annotated[int, typer.Option(help="Hypotheses kept at every step; 1 is greedy.")]
Gamma = Annotated[float, typer.Option(help="Weight of the square root of the number of words.")]
Longest = Annotated[int | None, typer.Option(help="Characters of a transcript at most; by default one in 40 ms.")]
Batch = Annotated[int, typer.Option(help="Recordings, or pieces of one, at a time.")]
