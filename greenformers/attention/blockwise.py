"""Blockwise attention, BlockBERT. Qiu 2019, arXiv:1911.02972, 3; survey (16): each head sees one block a block.

Time O(N^2 D / n_b), memory O(N D). Bidirectional only. The fast form is dense attention block by block; of texts of
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
    block, other = (math.floor((at + 1 - 1) * n / length + 1) for at in (i, j))
    permutation = [(each + head) % n + 1 for each in range(n)]
    return permutation[block - 1] == other


reference = over_pairs(formula)


class Blockwise(BlockSparse):
    """Block b of n_b sees block (b + h) mod n_b in head h, where position i is in block floor(i n_b / N).

    Both i and N are of the text, from its first kept position to the last.

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

    def forward(  # noqa: D102
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B H N D"]:
        self.check(q, k, v, key_mask)
        q, k, v = finite(q, k, v, key_mask, query_mask)
        text = text_of(key_mask, query_mask)
        if key_mask is None or text is None or (not is_traced(text) and bool(text.all())):
            return self.local(q, k, v, key_mask)
        return self._of_texts(q, k, v, key_mask, text)

    def _of_texts(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor, text: Tensor) -> Tensor:
        """Each text has blocks of its own: all are gathered into as many places as the longest can have."""
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

        turns, found = min(n, heads), []
        for turn in range(turns):
            seen = at.roll(-turn, 1)
            mask = (taken(key_mask, seen.flatten(1)).view_as(seen) & inside.roll(-turn, 1)).flatten(0, 1)
            some = blocks(q[:, turn::n], at), blocks(k[:, turn::n], seen), blocks(v[:, turn::n], seen)
            found.append(dense_attention(*some, mask, dropout=self.drop()).unflatten(0, (batch, n)))
        out = self._in_order(torch.cat(found, 2), 2).transpose(1, 2).flatten(2, 3)  # (B, H, n L, D)
        i = (torch.arange(keys, device=q.device) - first).clamp(min=0)
        block = (i * n // length).clamp(max=n - 1)
        return taken(out, (block * places + i - cuts.gather(1, block)).clamp(max=n * places - 1))

    def _in_order(self, x: Tensor, dim: int) -> Tensor:
        """Heads as they were, of those that take turn 0, those that take turn 1, and so on."""
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
        return self._in_order(torch.cat(heads, 1), 1)
