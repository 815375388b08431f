"""Answers that are a part of a text: which part a model tells, and how near it is. Rajpurkar 2016, arXiv:1606.05250."""

import re
import string
from collections import Counter
from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

LONGEST = 30
"""Tokens of an answer at most."""


class Span(NamedTuple):
    """A part of a text that may be the answer.

    Attributes:
        logits: Sum of the logits of its first token as the first and of its last as the last.
        first: Its first token.
        last: Its last token.
    """

    logits: float
    first: int
    last: int


def answer_span(start: Float[Tensor, " n"], end: Float[Tensor, " n"], inside: Sequence[bool]) -> Span | None:
    """The likeliest answer: the part of at most `LONGEST` tokens of the text with the largest sum of its two logits.

    None where no logit is a number, or no token is of the text.

    Args:
        start: Logits of each token as the first one, of which those behind the pair are padding.
        end: Logits of each token as the last one.
        inside: Whether each token of the pair is of the text.
    """
    count = len(inside)
    own = torch.tensor(inside, device=start.device)
    sums = start[:count, None] + end[None, :count]
    seen = torch.ones(count, count, dtype=torch.bool, device=start.device).triu().tril(LONGEST - 1)
    sums = sums.masked_fill(~(seen & own[:, None] & own), -torch.inf)
    best = int(sums.nan_to_num(-torch.inf, -torch.inf, -torch.inf).argmax())
    first, last = divmod(best, count)
    largest = sums[first, last].item()
    return Span(largest, first, last) if isfinite(largest) else None


def answer_f1(answer: str, right: Sequence[str]) -> float:
    """F1 of the words of an answer and of those of the right answer that it is nearest to, in percent.

    Words are compared in lower case, without punctuation and without a, an and the. Without a right answer an empty one
    is right.

    Args:
        answer: The answer, empty for none.
        right: The right answers.
    """
    own = _words(answer)
    if not right:
        return 100.0 if not own else 0.0
    return max(_f1(own, _words(other)) for other in right)


def _f1(own: Sequence[str], other: Sequence[str]) -> float:
    if not own or not other:
        return 100.0 * (own == other)
    return 200 * (Counter(own) & Counter(other)).total() / (len(own) + len(other))


def _words(text: str) -> list[str]:
    plain = text.lower().translate(str.maketrans("", "", string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()
