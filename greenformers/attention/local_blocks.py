"""Local blocks of the Image Transformer. Parmar 2018, arXiv:1802.05751, 3.3: the block of i and the block before.

Time O(N b D), memory O(N D).
The fast form takes queries in tiles, each beside the keys they may see (`_block_sparse.py`).
"""

from torch import Tensor

from greenformers.attention._block_sparse import BlockSparse
from greenformers.attention._contract import Shape
from greenformers.attention._reference import over_pairs
from greenformers.attention._tiles import Tiling, blocks_of


def formula(mechanism: "LocalBlocks", i: int, j: int, head: int, length: int) -> bool:
    """Whether i sees j, before the causal mask: j is in the block of i, or in the block before."""
    start = i - i % mechanism.block
    return start - mechanism.block <= j < start + mechanism.block


reference = over_pairs(formula)


class LocalBlocks(BlockSparse):
    """i sees j if floor(j / b) is floor(i / b), or one less. Blocks are counted from the first kept position of a text.

    Args:
        shape: Heads, width and length.
        block: Number b of positions of a block.
        dropout: Probability of dropping an attention weight in training.

    Raises:
        ValueError: The attention is cross-attention, or an option is out of range.
    """

    rank_option = "block"
    last_shares_keys = True

    def __init__(self, shape: Shape, *, block: int = 256, dropout: float = 0.0) -> None:
        super().__init__(shape, dropout=dropout)
        if block < 1:
            raise ValueError(f"block must be at least 1, got {block}")
        self.block = self.period = block

    def visible(  # noqa: D102
        self, i: Tensor, j: Tensor, head: int | Tensor, is_global: Tensor, length: int
    ) -> Tensor:
        back = i // self.block - j // self.block
        return (back == 0) | (back == 1)

    def seen_by_last(self, keys: int) -> int | None:  # noqa: D102
        return min(keys, self.block + (keys - 1) % self.block + 1)

    def tilings(self, length: int) -> tuple[Tiling, ...]:  # noqa: D102
        return (blocks_of(self.block, before=1, causal=self.shape.causal),)
