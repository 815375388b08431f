"""Tokens of pairs of texts, [CLS] a [SEP] b [SEP], cut to a length as a tokenizer cuts them."""

from collections.abc import Iterator, Sequence
from itertools import compress, count
from typing import Any

from transformers import PreTrainedTokenizerBase

AT_ONCE = 256
"""Pairs that are tokenised together; of more of them the memory of all that a tokenizer tells would be large."""

IDS, TYPES = "input_ids", "token_type_ids"


def encoded_pairs(
    tokenizer: PreTrainedTokenizerBase, first: Sequence[str], second: Sequence[str], length: int, *, typed: bool = False
) -> Iterator[dict[str, list[int]]]:
    """Yield the token ids of each pair, cut at its longer text first.

    They are those of `truncation=True`, by which a fast tokenizer also pairs every part that it cuts off of one text
    with every part of the other: its time grows with the product of their lengths, and that of this function with their
    sum. A slow tokenizer cuts them itself.

    Args:
        tokenizer: Tokenizer of the texts, which cuts on the right.
        first: The first text of each pair.
        second: The second text of each pair.
        length: Most tokens of a pair, with the special ones.
        typed: Whether the types that tell the two texts apart are yielded too, as `token_type_ids`.
    """
    names = (IDS, TYPES) if typed else (IDS,)
    more: dict[str, Any] = {"return_attention_mask": False, "return_token_type_ids": typed, "verbose": False}
    if not tokenizer.is_fast:
        more |= {"truncation": True, "max_length": length}
    for start in range(0, len(first), AT_ONCE):
        texts = (list(some[start : start + AT_ONCE]) for some in (first, second))
        encoded = tokenizer(*texts, **more)
        for row, ids in enumerate(encoded[IDS]):
            pair = {name: encoded[name][row] for name in names}
            if len(ids) > length:
                left = within(encoded.sequence_ids(row), length)
                pair = {name: list(compress(values, left)) for name, values in pair.items()}
            yield pair


def within(sides: list[int | None], length: int) -> list[bool]:
    """Which tokens of a pair are left; `sides` tells the text of each token, None of a special one."""
    shares = _shares(sides.count(0), sides.count(1), length - sides.count(None))
    places = (count(), count())
    return [side is None or next(places[side]) < shares[side] for side in sides]


def _shares(first: int, second: int, room: int) -> tuple[int, int]:
    """Numbers of tokens that two texts of `first` and `second` tokens have in a room that is too small for both.

    The shorter text stays whole where it takes at most half of the room; else each has half, and of an odd room the
    longer one has the token that is left, of equal ones the second.
    """
    half = room // 2
    if first > second:
        return room - min(second, half), min(second, half)
    return min(first, half), room - min(first, half)
