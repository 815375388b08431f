"""Work on some sequences and heads at a time, whose tensors stay in a cache from one operation to the next."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from greenformers.attention._aligned import in_parts

NUMBERS = 2**20
"""Numbers of queries, and as many of keys and of values, that are worked on at a time."""


@dataclass(frozen=True)
class Parts:
    """A division of sequences, and of the heads of each, into parts that are computed one after the other.

    Attributes:
        batch: Number of sequences.
        heads: Number of heads.
        sequences_at_once: Sequences of a part.
        heads_at_once: Heads of a part: all of them where it has several sequences.
    """

    batch: int
    heads: int
    sequences_at_once: int
    heads_at_once: int

    @classmethod
    def of(cls, x: Float[Tensor, "B H N D"]) -> Self:
        """Parts of about `NUMBERS` numbers each; a single one where work cannot be divided or this brings nothing."""
        B, H, N, D = x.shape
        if not in_parts(x):
            return cls(B, H, max(B, 1), max(H, 1))
        several = max(1, NUMBERS // max(N * D, 1))
        return cls(B, H, max(1, several // H), min(H, several))

    def of_heads(self, x: Tensor | None) -> Sequence[Tensor | None]:
        """The part (b, h, ...) of a tensor (B, H, ...) for each; a split has a gradient that is put together once."""
        if x is None:
            return [None] * len(self.slices)
        return [part for row in x.split(self.sequences_at_once) for part in row.split(self.heads_at_once, 1)]

    def of_sequences(self, mask: Bool[Tensor, "B N"] | None) -> Sequence[Tensor | None]:
        """The part (b, N) of a mask for each."""
        if mask is None:
            return [None] * len(self.slices)
        return [row for row in mask.split(self.sequences_at_once) for _ in range(0, self.heads, self.heads_at_once)]

    @property
    def slices(self) -> list[slice]:
        """The heads of each part."""
        heads = [slice(at, at + self.heads_at_once) for at in range(0, self.heads, self.heads_at_once)]
        return heads * max(1, -(-self.batch // self.sequences_at_once))  # a batch of nothing is one part

    def joined(self, parts: Sequence[Float[Tensor, "b h N D"]]) -> Float[Tensor, "B H N D"]:
        """The tensor of which these are the parts."""
        if len(parts) == 1:
            return parts[0]
        return torch.cat([part.flatten(0, 1) for part in parts]).unflatten(0, (self.batch, self.heads))
