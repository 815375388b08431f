"""Which token of a sentence is the first one of each word."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate


def first_tokens(words: Sequence[str], spans: Sequence[tuple[int, int]]) -> list[int]:
    """For each token, the number of the word that it is the first token of; -1 for others and for special tokens.

    Args:
        words: Words of the sentence, which are joined by single spaces.
        spans: First character of each token in the sentence, and the one after its last; equal for special tokens. A
            token may begin with the space before its word.
    """
    starts = list(accumulate((len(word) + 1 for word in words[:-1]), initial=0))
    firsts, before = [], -1
    for start, end in spans:
        word = bisect_right(starts, end - 1) - 1
        within = start < end <= starts[word] + len(words[word])
        firsts.append(word if within and word > before else -1)
        before = max(before, firsts[-1])
    return firsts
