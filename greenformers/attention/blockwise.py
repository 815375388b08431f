"""Blockwise attention, BlockBERT. Qiu 2019, arXiv:1911.02972, 3; survey (16): in each head a block sees one block.

Time O(N^2 D / n_b), memory O(N D). Bidirectional only. The fast form is dense attention block by block; for texts of
several lengths, whose blocks begin at different positions, the blocks are gathered first.
"""

import math
from itertools import pairwise

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from greenformers.attention._aligned import finite, first_of, is_traced, length_of, taken, text_of
from greenformers.attention._block_sparse import BlockSparse
from greenformers.attention._contract import Shape
from greenformers.attention._dense import dense_attention
from greenformers.attention._reference import over_pairs
from greenformers.attention._tiled_op import Columns


def formula(mechanism: "Blockwise", i: int, j: int, head: int, length: int) -> bool:
    """Whether i sees j. Survey (16), where positions, blocks and permutations count from 1."""
    n = mechanism.blocks
    block, key_block = (math.floor((at + 1 - 1) * n / length + 1) for at in (i, j))
    permutation = [(b + head) % n + 1 for b in range(n)]
    return permutation[block - 1] == key_block


reference = over_pairs(formula)


class Blockwise(BlockSparse):
    """Block b of n_b sees block (b + h) mod n_b in head h, where position i is in block floor(i n_b / N).

    Both i and N count within the text, from its first kept position to its last.

    Args:
        shape: Heads, width and length.
        blocks: Number n_b of blocks.
        dropout: Probability of dropping an attention weight in training.

    Raises:
        ValueError: The attention is causal or cross-attention, or an option is out of range.
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

    def forward(  # noqa: D102
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B H N D"]:
        self.check(q, k, v, key_mask, query_mask)
        q, k, v = finite(q, k, v, key_mask, query_mask)
        text = text_of(key_mask, query_mask)
        if key_mask is None or text is None or (not is_traced(text) and bool(text.all())):
            return self.local(q, k, v, key_mask)
        return self._of_texts(q, k, v, key_mask, text)

    def _of_texts(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor, text: Tensor) -> Tensor:
        """Attention of texts with blocks of their own, gathered into blocks as long as the longest can be."""
        (batch, heads, keys, _), n = q.shape, self.blocks
        first, length, places = first_of(text)[:, None], length_of(text)[:, None], -(-keys // n)
        cuts = -(torch.arange(0, -n - 1, -1, device=q.device) * length // n)  # ceil(block N / n), (B, n + 1)
        place = torch.arange(places, device=q.device)
        inside = place < cuts.diff(dim=1)[..., None]  # (B, n, L)
        at = (first + cuts[:, :-1])[..., None] + place
        at = at.clamp(max=keys - 1)

        def blocks(x: Tensor, at: Tensor) -> Tensor:
            """(B, H, M, D) to the blocks (B n, H, L, D)."""
            return taken(x, at.flatten(1)).unflatten(2, (n, places)).transpose(1, 2).flatten(0, 1)

        turns, outputs = min(n, heads), []
        for turn in range(turns):
            seen = at.roll(-turn, 1)
            mask = (taken(key_mask, seen.flatten(1)).view_as(seen) & inside.roll(-turn, 1)).flatten(0, 1)
            inputs = blocks(q[:, turn::n], at), blocks(k[:, turn::n], seen), blocks(v[:, turn::n], seen)
            outputs.append(dense_attention(*inputs, mask, dropout=self.drop()).unflatten(0, (batch, n)))
        out = self._in_order(torch.cat(outputs, 2), 2).transpose(1, 2).flatten(2, 3)  # (B, H, n L, D)
        i = (torch.arange(keys, device=q.device) - first).clamp(min=0)
        block = (i * n // length).clamp(max=n - 1)
        return taken(out, (block * places + i - cuts.gather(1, block)).clamp(max=n * places - 1))

    def _in_order(self, x: Tensor, dim: int) -> Tensor:
        """Heads in their original order, from the order of turns: those of turn 0 first, then those of turn 1, ..."""
        heads, n = self.shape.heads, self.blocks
        if heads <= n:
            return x
        order = [head for turn in range(n) for head in range(turn, heads, n)]
        return x.index_select(dim, torch.tensor(order, device=x.device).argsort())

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
        # Blocks are few and of any length: dense attention of each.
        n = self.blocks
        cuts = [-(-block * k.shape[2] // n) for block in range(n + 1)]
        parts = [slice(*pair) for pair in pairwise(cuts)]
        turns = min(n, q.shape[1])
        heads = []
        for turn in range(turns):
            outputs = []
            for block, part in enumerate(parts):
                seen = parts[(block + turn) % n]
                rows, keys, values = q[:, turn::n, part], k[:, turn::n, seen], v[:, turn::n, seen]
                mask = None if key_mask is None else key_mask[:, seen]
                empty = seen.start == seen.stop  # more blocks than positions
                outputs.append(
                    torch.zeros_like(rows) if empty else dense_attention(rows, keys, values, mask, dropout=self.drop())
                )
            heads.append(torch.cat(outputs, 2))
        return self._in_order(torch.cat(heads, 1), 1)
