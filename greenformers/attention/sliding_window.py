"""Sliding window. Beltagy 2020, arXiv:2004.05150, 3.1: each position sees its w neighbours on either side.

Time O(N w D), memory O(N D). Dilated, it sees every d-th position up to w d away.
The fast form takes queries in tiles, each beside the keys they may see (`_block_sparse.py`).
"""

from collections.abc import Sequence

from torch import Tensor

from greenformers.attention._block_sparse import BlockSparse
from greenformers.attention._contract import Shape
from greenformers.attention._reference import over_pairs
from greenformers.attention._tiles import Tiling, bands, check_bands, within


def formula(mechanism: "SlidingWindow", i: int, j: int, head: int, length: int) -> bool:
    """Whether i sees j, before the causal mask: j is one of w positions on either side, d apart."""
    d = mechanism.dilation[head]
    return j in range(i - mechanism.window * d, i + mechanism.window * d + 1, d)


reference = over_pairs(formula)


class SlidingWindow(BlockSparse):
    """abs(i - j) <= w d, and i - j a multiple of d; causal: only positions up to i.

    Args:
        shape: Heads, width and length.
        window: Number w of neighbours on either side.
        dilation: Dilation d, or one for each head.
        dropout: Probability of dropping an attention weight in training.

    Raises:
        ValueError: The attention is cross-attention, or an option is out of range.
    """

    rank_option = "window"

    def __init__(
        self, shape: Shape, *, window: int = 256, dilation: int | Sequence[int] = 1, dropout: float = 0.0
    ) -> None:
        super().__init__(shape, dropout=dropout)
        self.window, self.dilation = window, check_bands(window, dilation, shape.heads)
        self.last_shares_keys = set(self.dilation) == {1}

    def visible(  # noqa: D102
        self, i: Tensor, j: Tensor, head: int | Tensor, is_global: Tensor, length: int
    ) -> Tensor:
        return within(i, j, self.window, self.dilation, head)

    def seen_by_last(self, keys: int) -> int | None:  # noqa: D102
        return min(keys, self.window + 1) if set(self.dilation) == {1} else None

    def tilings(self, length: int) -> tuple[Tiling, ...]:  # noqa: D102
        return bands(self.window, self.dilation, causal=self.shape.causal)
