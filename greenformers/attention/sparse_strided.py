"""Sparse Transformer, strided. Child 2019, arXiv:1904.10509; survey (14): the neighbours, and every s-th position.

Time O(N (s + N / s) D), N^1.5 for s = sqrt(N); memory O(N D).
The fast form takes queries in tiles, each beside the keys they may see (`_block_sparse.py`).
"""

import math

from torch import Tensor

from greenformers.attention._block_sparse import BlockSparse
from greenformers.attention._contract import Shape
from greenformers.attention._reference import over_pairs
from greenformers.attention._tiles import ROWS, Tiling, band


def formula(mechanism: "SparseStrided", i: int, j: int, head: int, length: int) -> bool:
    """Whether i sees j, before the causal mask. Survey (14)."""
    s = mechanism.stride
    return i + s > j > i - s or (i - j) % s == 0


reference = over_pairs(formula)


class SparseStrided(BlockSparse):
    """abs(i - j) < s, or i - j a multiple of s. All heads see both.

    Args:
        shape: Heads, width and length.
        stride: Stride s; by default about sqrt(`max_len`).
        dropout: Probability of dropping an attention weight in training.

    Raises:
        ValueError: The attention is cross-attention, or an option is out of range.
    """

    def __init__(self, shape: Shape, *, stride: int | None = None, dropout: float = 0.0) -> None:
        super().__init__(shape, dropout=dropout)
        stride = round(math.sqrt(shape.max_len)) if stride is None else stride
        if stride < 1:
            raise ValueError(f"stride must be at least 1, got {stride}")
        self.stride = stride

    def visible(  # noqa: D102
        self, i: Tensor, j: Tensor, head: int | Tensor, is_global: Tensor, length: int
    ) -> Tensor:
        return ((i - j).abs() < self.stride) | ((i - j) % self.stride == 0)

    def tilings(self, length: int) -> tuple[Tiling, ...]:  # noqa: D102
        causal = self.shape.causal
        near = band(self.stride - 1, causal=causal)
        # The query's own position is left to the second tiling.
        near = Tiling(near.rows, near.left, near.right, partial=(*near.partial, range(near.rows)))
        far = Tiling(ROWS, None, 0 if causal else None, self.stride, (range(ROWS),) if causal else ())
        return near, far
