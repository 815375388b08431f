"""Longformer. Beltagy 2020, arXiv:2004.05150, 3.1: a sliding window, and global tokens with projections of their own.

Time O(N (w + g) D), memory O(N D). Bidirectional only: `sliding_window` is its causal form.
The fast form takes queries in tiles, each beside the keys they may see (`_block_sparse.py`).
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from greenformers.attention._aligned import finite, left_padding, text_of, zeroed
from greenformers.attention._block_sparse import BlockSparse
from greenformers.attention._contract import Shape
from greenformers.attention._dense import dense_attention
from greenformers.attention._reference import Visible, dot_products, pairs_or, text_by_text, weighted_mean
from greenformers.attention._tiled_op import Columns
from greenformers.attention._tiles import Tiling, bands, bias_of, check_bands, within


def formula(mechanism: "Longformer", i: int, j: int, head: int, length: int) -> bool:
    """Whether i sees j where the first positions are global: in the window, or one of them is global."""
    return _near(mechanism, i, j, head, length) or i < mechanism.globals or j < mechanism.globals


def _near(mechanism: "Longformer", i: int, j: int, head: int, length: int) -> bool:
    d = mechanism.dilation[head]
    return j in range(i - mechanism.window * d, i + mechanism.window * d + 1, d)


@text_by_text
def reference(
    mechanism: "Longformer",
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H N D"],
    v: Float[Tensor, "B H N D"],
    key_mask: Bool[Tensor, "B N"] | None = None,
    visible: Visible | None = None,
    *,
    q_global: Float[Tensor, "B H N D"] | None = None,
    k_global: Float[Tensor, "B H N D"] | None = None,
    v_global: Float[Tensor, "B H N D"] | None = None,
    global_mask: Bool[Tensor, "B N"] | None = None,
) -> Float[Tensor, "B H N D"]:
    """softmax(q k^T / sqrt(D)) v over window and global keys; a global query has its own projections and sees all."""
    N = q.shape[2]
    keep = torch.ones(len(q), N, dtype=torch.bool) if key_mask is None else key_mask
    first = torch.arange(N).expand(len(q), -1) < mechanism.globals
    row = (first if global_mask is None else global_mask)[:, None, :, None]  # (B, 1, N, 1)
    seen = (pairs_or(visible, _near, mechanism, N, N) | row.mT) & keep[:, None, None]
    out = weighted_mean(dot_products(q, k).exp(), v, seen)
    q, k, v = (x if own is None else own for x, own in ((q, q_global), (k, k_global), (v, v_global)))
    return torch.where(row, weighted_mean(dot_products(q, k).exp(), v, keep[:, None, None]), out)


class Longformer(BlockSparse):
    """i sees j if abs(i - j) <= w (see `sliding_window`), or i or j is global.

    A global query attends with `q_global` to all `k_global` and `v_global`; other queries see global keys as `k` and
    `v`.

    Args:
        shape: Heads, width and length.
        window: Number w of neighbours on either side (half of the attention window of `transformers`).
        dilation: Dilation d, or one for each head.
        globals: Number of first positions of a text that are global where `global_mask` is not given.
        dropout: Probability of dropping an attention weight in training.

    Raises:
        ValueError: The attention is causal or cross-attention, or an option is out of range.
    """

    projections = ("q", "k", "v", "q_global", "k_global", "v_global")
    takes_global_mask = True
    rank_option = "window"

    def __init__(
        self,
        shape: Shape,
        *,
        window: int = 256,
        dilation: int | Sequence[int] = 1,
        globals: int = 1,  # noqa: A002 - the paper's word
        dropout: float = 0.0,
    ) -> None:
        super().__init__(shape, dropout=dropout)
        self.refuse_causal("a global query sees all; sliding_window is the causal one")
        if globals < 0:
            raise ValueError(f"globals must be at least 0, got {globals}")
        self.window, self.dilation, self.globals = window, check_bands(window, dilation, shape.heads), globals

    def visible(  # noqa: D102
        self, i: Tensor, j: Tensor, head: int | Tensor, is_global: Tensor, length: int
    ) -> Tensor:
        return within(i, j, self.window, self.dilation, head) | is_global[i] | is_global[j]

    def ends(self, length: int) -> tuple[int, int]:  # noqa: D102
        return min(self.globals, length), 0

    def tilings(self, length: int) -> tuple[Tiling, ...]:  # noqa: D102
        return bands(self.window, self.dilation, causal=False)

    def forward(
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
        q_global: Float[Tensor, "B H N D"] | None = None,
        k_global: Float[Tensor, "B H M D"] | None = None,
        v_global: Float[Tensor, "B H M D"] | None = None,
        global_mask: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B H N D"]:
        """Mix the values for every query.

        Args:
            q: Queries (B, H, N, D).
            k: Keys (B, H, M, D), M = N.
            v: Values (B, H, M, D).
            key_mask: True = keep (B, M).
            query_mask: True = keep (B, N).
            q_global: Projected global queries (B, H, N, D); by default `q`.
            k_global: Keys for global queries (B, H, M, D); by default `k`.
            v_global: Values for global queries (B, H, M, D); by default `v`.
            global_mask: True = global (B, N), for each example; by default the first `globals` positions from the
                first kept one on.

        Raises:
            ValueError: The shapes of the inputs do not fit each other.
        """
        self.check(q, k, v, key_mask, query_mask)
        q, k, v = finite(q, k, v, key_mask, query_mask)
        rows = (
            q if q_global is None else q_global,
            k if k_global is None else k_global,
            v if v_global is None else v_global,
        )
        for name, x in zip(self.projections[3:], rows, strict=True):
            if x.shape != q.shape:
                raise ValueError(f"{name} must be {tuple(q.shape)}, got {tuple(x.shape)}")
        if query_mask is None:
            query_mask = key_mask
        rows = zeroed(rows[0], query_mask), zeroed(rows[1], key_mask), zeroed(rows[2], key_mask)
        if global_mask is None:
            if not self.globals:
                return self.local(q, k, v, key_mask)
            first = left_padding(text_of(key_mask, query_mask))
            if first is None:
                return self.with_ends(q, k, v, key_mask, rows)
            at = torch.arange(q.shape[2], device=q.device) - first[:, None]
            count = min(self.globals, q.shape[2])
            return self._by_mask(q, k, v, key_mask, rows, (at >= 0) & (at < count), count)
        expected = (q.shape[0], q.shape[2])
        if global_mask.shape != expected or global_mask.dtype != torch.bool:
            raise ValueError(
                f"global_mask must be a bool tensor {expected}, got {global_mask.dtype} {tuple(global_mask.shape)}"
            )
        count = int(global_mask.sum(1).max()) if len(q) else 0  # there is no largest of a batch of nothing
        return self._by_mask(q, k, v, key_mask, rows, global_mask, count)

    def _by_mask(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        rows: tuple[Tensor, Tensor, Tensor],
        global_mask: Tensor,
        count: int,
    ) -> Tensor:
        """Attention with global positions of each example, gathered: `count` is the largest number of them."""
        if count == 0:
            return self.local(q, k, v, key_mask)
        # Examples with fewer are filled up with other positions, each once, which keep their local output.
        at = global_mask.int().argsort(dim=1, descending=True, stable=True)[:, :count]
        real = global_mask.gather(1, at)
        index = at[:, None, :, None].expand(-1, q.shape[1], -1, q.shape[3])
        seen = real if key_mask is None else real & key_mask.gather(1, at)
        columns = Columns(k.gather(2, index), v.gather(2, index), bias_of(seen[:, None], q))
        others = ~global_mask if key_mask is None else key_mask & ~global_mask
        out = self.local(q, k, v, others, columns)
        dense = dense_attention(rows[0].gather(2, index), rows[1], rows[2], key_mask, dropout=self.drop())
        return out.scatter(2, index, torch.where(real[:, None, :, None], dense, out.gather(2, index)))
