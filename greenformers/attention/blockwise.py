"""Blockwise attention, BlockBERT. Qiu 2019, arXiv:1911.02972, 3; survey (16): each head sees one block a block.

Time O(N^2 D / n_b), memory O(N D). Bidirectional only. The fast form is dense attention block by block.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor

from greenformers.attention._block_sparse import BlockSparse
from greenformers.attention._contract import Shape
from greenformers.attention._dense import dense_attention
from greenformers.attention._reference import over_pairs
from greenformers.attention._tiled_op import Columns


def formula(mechanism: "Blockwise", i: int, j: int, head: int, length: int) -> bool:
    """Whether i sees j. Survey (16), where positions, blocks and permutations count from 1."""
    n = mechanism.blocks
    block, other = (math.floor((at + 1 - 1) * n / length + 1) for at in (i, j))
    permutation = [(each + head) % n + 1 for each in range(n)]
    return permutation[block - 1] == other


reference = over_pairs(formula)


class Blockwise(BlockSparse):
    """Block b of n_b sees block (b + h) mod n_b in head h, where position i is in block floor(i n_b / N).

    Args:
        shape: heads, width and length.
        blocks: n_b.
        dropout: probability of dropping an attention weight in training.

    Raises:
        ValueError: causal, cross-attention, or an option out of range.
    """

    def __init__(self, shape: Shape, *, blocks: int = 2, dropout: float = 0.0) -> None:
        super().__init__(shape, dropout=dropout)
        self.refuse_causal("a block that sees a later one would see nothing")
        if blocks < 1:
            raise ValueError(f"blocks must be at least 1, got {blocks}")
        self.blocks = blocks

    def visible(  # noqa: D102
        self, i: Tensor, j: Tensor, head: int | Tensor, is_global: Tensor, length: int
    ) -> Tensor:
        return (i * self.blocks // length + head) % self.blocks == j * self.blocks // length

    def local(  # noqa: D102
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        columns: Columns | None = None,
        *,
        offset: int = 0,
        length: int | None = None,
    ) -> Tensor:
        # Whole blocks of any length, and few: dense attention of each.
        n = self.blocks
        cuts = [-(-block * k.shape[2] // n) for block in range(n + 1)]
        parts = [slice(*pair) for pair in pairwise(cuts)]
        turns = min(n, q.shape[1])
        heads = []
        for turn in range(turns):
            found = []
            for block, part in enumerate(parts):
                seen = parts[(block + turn) % n]
                rows, keys, values = q[:, turn::n, part], k[:, turn::n, seen], v[:, turn::n, seen]
                mask = None if key_mask is None else key_mask[:, seen]
                empty = seen.start == seen.stop  # more blocks than positions
                found.append(
                    torch.zeros_like(rows) if empty else dense_attention(rows, keys, values, mask, dropout=self.drop())
                )
            heads.append(torch.cat(found, 2))
        order = [head for turn in range(turns) for head in range(turn, q.shape[1], n)]
        out = torch.cat(heads, 1)
        return out if turns == q.shape[1] else out[:, torch.tensor(order, device=q.device).argsort()]
