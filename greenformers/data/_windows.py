"""A question and a text that is too long for one input, read in several that overlap."""

from collections.abc import Iterator, Sequence
from itertools import compress
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from greenformers.data._pairs import IDS, TYPES, within

OVERLAP = 3
"""The share 1 / OVERLAP of a window's part of the text is read in the next one too."""


class Window(NamedTuple):
    """An input with a part of a text, or all of it.

    Attributes:
        place: Number of the example.
        row: Token ids (n,), and their types where the model reads these.
        spans: For each token the characters of the text that it stands for, None for others.
        whole: Whether the windows of the example hold all of its tokens: not where its question fills a whole one.
    """

    place: int
    row: dict[str, Tensor]
    spans: list[tuple[int, int] | None]
    whole: bool


def windows(
    tokenizer: PreTrainedTokenizerBase, pairs: Sequence[tuple[str, ...]], length: int, *, typed: bool
) -> Iterator[Window]:
    """Yield the windows of each question and its text, in order.

    Args:
        tokenizer: A fast tokenizer.
        pairs: Questions and texts.
        length: Most tokens of a window, with the question and the special ones.
        typed: Whether the types of the tokens are told.
    """
    names = (IDS, TYPES) if typed else (IDS,)
    for place, (question, text) in enumerate(pairs):
        read = tokenizer(
            question, text, return_offsets_mapping=True, return_token_type_ids=typed, return_attention_mask=False,
            verbose=False,
        )  # fmt: skip
        sides = read.sequence_ids(0)
        spans = [span if side == 1 else None for span, side in zip(read["offset_mapping"], sides, strict=True)]
        for keep in _kept(sides, length):
            row = {name: torch.tensor(list(compress(read[name], keep))) for name in names}
            whole = len(sides) <= length or _room(sides, length) > 0
            yield Window(place, row, list(compress(spans, keep)), whole)


def _room(sides: Sequence[int | None], length: int) -> int:
    """Tokens of the text in a window; `sides` tells the text of each token of a pair, None of a special one."""
    return length - (len(sides) - sides.count(1))


def _kept(sides: list[int | None], length: int) -> Iterator[list[bool]]:
    """Which tokens of a pair are in each of its windows."""
    room, text = _room(sides, length), sides.count(1)
    if room < 1:
        yield within(sides, length)
        return
    start = 0
    first = sides.index(1) if text else 0
    while True:
        yield [side != 1 or start <= at - first < start + room for at, side in enumerate(sides)]
        if start + room >= text:
            return
        start += room - room // OVERLAP
