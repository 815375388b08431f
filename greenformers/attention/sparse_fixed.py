"""Sparse Transformer, fixed. Child 2019, arXiv:1904.10509; survey (15): the own block, and summary columns of all.

Time O(N (s + c N / s) D), N^1.5 for s = sqrt(N); memory O(N D).
The fast form takes queries in tiles, each beside the keys they may see (`_block_sparse.py`).
"""

import math

import torch
from torch import Tensor

from greenformers.attention._block_sparse import BlockSparse
from greenformers.attention._contract import Shape
from greenformers.attention._reference import over_pairs
from greenformers.attention._tiles import Tiling, blocks_of


def formula(mechanism: "SparseFixed", i: int, j: int, head: int, length: int) -> bool:
    """Whether i sees j, before the causal mask. Survey (15) for head 0; for the next the c columns before."""
    s, c = mechanism.stride, mechanism.summary
    turn = head % (s // c)
    return math.floor(j / s) == math.floor(i / s) or s - c <= j % s + turn * c < s


reference = over_pairs(formula)


class SparseFixed(BlockSparse):
    """floor(j / s) = floor(i / s), or j among the summary columns of its block.

    They are the last c, j mod s >= s - c, for the first head; the c before them for the second, and so on, starting
    again with the last c where a block has no more. Blocks are counted from the first kept position of a text.

    Args:
        shape: Heads, width and length.
        stride: Stride s; by default about sqrt(`max_len`).
        summary: Number c of summary columns; by default 8, or s where that is smaller.
        dropout: Probability of dropping an attention weight in training.

    Raises:
        ValueError: The attention is cross-attention, or an option is out of range.
    """

    def __init__(
        self, shape: Shape, *, stride: int | None = None, summary: int | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__(shape, dropout=dropout)
        stride = round(math.sqrt(shape.max_len)) if stride is None else stride
        if stride < 1:
            raise ValueError(f"stride must be at least 1, got {stride}")
        summary = min(8, stride) if summary is None else summary
        if not 1 <= summary <= stride:
            raise ValueError(f"summary must be in 1..{stride} (the stride), got {summary}")
        self.stride, self.summary = stride, summary
        self.period = stride

    def first_column(self, head: int | Tensor) -> int | Tensor:
        """First summary column of a head within a block."""
        s, c = self.stride, self.summary
        return s - c - head % (s // c) * c

    def visible(  # noqa: D102
        self, i: Tensor, j: Tensor, head: int | Tensor, is_global: Tensor, length: int
    ) -> Tensor:
        within, first = j % self.stride, self.first_column(head)
        return (j // self.stride == i // self.stride) | ((within >= first) & (within < first + self.summary))

    def near(self, i: Tensor, j: Tensor, head: int, length: int) -> Tensor:  # noqa: D102
        return i // self.stride == j // self.stride

    def tilings(self, length: int) -> tuple[Tiling, ...]:  # noqa: D102
        return (blocks_of(self.stride, before=0, causal=self.shape.causal),)

    def columns(self, length: int, device: torch.device) -> tuple[Tensor, int]:  # noqa: D102
        s, c = self.stride, self.summary
        first = torch.as_tensor(self.first_column(torch.arange(self.shape.heads, device=device)))
        block = torch.arange(0, length, s, device=device)[:, None] + torch.arange(c, device=device)
        return first[:, None] + block.flatten(), self.tilings(length)[0].rows // s * c
