"""Tokens of pairs of texts, [CLS] a [SEP] b [SEP], cut to a length as a tokenizer cuts them."""

from collections.abc import Iterator, Sequence
from itertools import compress, count

from transformers import PreTrainedTokenizerFast

AT_ONCE = 256
"""Pairs that are tokenised together; of more of them the memory of all that a tokenizer tells would be large."""


def tokens_of_pairs(
    tokenizer: PreTrainedTokenizerFast, first: Sequence[str], second: Sequence[str], length: int
) -> Iterator[list[int]]:
    """Yield the tokens of each pair, cut at its longer text first.

    They are those of `truncation=True`, by which a tokenizer also pairs every part that it cuts off of one text with
    every part of the other: its time grows with the product of their lengths, and that of this function with their sum.

    Args:
        tokenizer: Tokenizer of the texts, which cuts on the right.
        first: The first text of each pair.
        second: The second text of each pair.
        length: Most tokens of a pair, with the special ones.
    """
    for start in range(0, len(first), AT_ONCE):
        texts = (list(some[start : start + AT_ONCE]) for some in (first, second))
        encoded = tokenizer(*texts, return_attention_mask=False, return_token_type_ids=False, verbose=False)
        for row, ids in enumerate(encoded["input_ids"]):
            yield ids if len(ids) <= length else _cut(ids, encoded.sequence_ids(row), length)


def _cut(ids: list[int], sides: list[int | None], length: int) -> list[int]:
    """The tokens that are left of a pair; `sides` tells the text of each token, None of a special one."""
    shares = _shares(sides.count(0), sides.count(1), length - sides.count(None))
    places = (count(), count())
    return list(compress(ids, (side is None or next(places[side]) < shares[side] for side in sides)))


def _shares(first: int, second: int, room: int) -> tuple[int, int]:
    """Numbers of tokens that two texts of `first` and `second` tokens have in a room that is too small for both.

    The shorter text stays whole where it takes at most half of the room; else each has half, and of an odd room the
    longer one has the token that is left, of equal ones the second.
    """
    half = room // 2
    if first > second:
        return room - min(second, half), min(second, half)
    return min(first, half), room - min(first, half)
