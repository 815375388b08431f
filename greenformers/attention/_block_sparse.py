"""Base of the mechanisms with a fixed pattern: which keys a query sees is data, and attention over them is exact.

A pattern declares `visible`, from which its picture, the dense attention of its tests and the masks within tiles are
made, and its layout in tiles. Its file begins with `formula`, in plain numbers from its paper, which tests compare
`visible` and the attention itself with. On the CPU the tiles of `greenformers.attention._tiled` compute it, forward and
backward; on an accelerator FlexAttention does. Time and memory O(visible pairs), no matrix of N x N.

Global positions, which see all and are seen by all, are keys beside every tile and queries of a dense attention.

Positions are counted from the first kept one of each text: where the pattern depends on that, texts with padding in
front of them are moved to a start of the pattern, and their outputs are moved back.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from greenformers._torch import block_mask, in_transform
from greenformers.attention._aligned import finite, left_padding, moved, moved_back, text_of
from greenformers.attention._contract import Attention, Shape, check_fit
from greenformers.attention._dense import dense_attention, of_groups
from greenformers.attention._flex import LEAST_WIDTH, LENGTHS, flex
from greenformers.attention._tiled_op import Columns, tiled_attention
from greenformers.attention._tiles import Tiling, bias_of, groups

_FEW = 16
"""Largest number of queries on top of a cache for which a mask over all keys in reach costs less than tiles."""


class BlockSparse(Attention):
    """Softmax attention of each query over the keys that `visible` shows it.

    Args:
        shape: Heads, width and length.
        dropout: Probability of dropping an attention weight in training.

    Raises:
        ValueError: The attention is cross-attention, whose queries have no place among the keys; or `dropout` is not in
            [0, 1).
    """

    period: int = 1
    """Period of the pattern in positions: 1 where it depends on distance alone, 0 where it has none."""

    takes_rotation = True

    def __init__(self, shape: Shape, *, dropout: float = 0.0) -> None:
        super().__init__(shape)
        if shape.cross:
            raise ValueError(f"{self.name} has no cross-attention: it goes by the distance of query and key")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        self.dropout = dropout
        self._masks: dict[tuple[object, ...], BlockMask] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_masks": {}}  # functions of these cannot be pickled

    @property
    def name(self) -> str:
        """Name of the mechanism, that of its file."""
        return type(self).__module__.rpartition(".")[2]

    def refuse_causal(self, reason: str) -> None:
        """Raise ValueError where the shape is causal."""
        if self.shape.causal:
            raise ValueError(f"{self.name} has no causal form: {reason}")

    def visible(self, i: Tensor, j: Tensor, head: int | Tensor, is_global: Tensor, length: int) -> Tensor:
        """Whether query i sees key j, before the causal mask.

        Args:
            i: Positions of queries.
            j: Positions of keys, broadcast with `i`.
            head: Index of the head, or heads broadcast with `i` and `j`.
            is_global: Whether each position is global (length,).
            length: Number of keys M.
        """
        raise NotImplementedError

    def ends(self, length: int) -> tuple[int, int]:
        """Numbers of positions at the beginning and at the end that are global in every example."""
        del length
        return 0, 0

    def tilings(self, length: int) -> tuple[Tiling, ...]:
        """Tilings of the positions that are not global; empty where a pattern has none."""
        del length
        return ()

    def extra_blocks(self, tiles: int, device: torch.device) -> Tensor | None:
        """Indices of the blocks of keys that each tile meets besides its own (H, T, r); blocks are as long as tiles."""
        del tiles, device
        return None

    def columns(self, length: int, device: torch.device) -> tuple[Tensor, int] | None:
        """Ascending positions (H, C) of the keys that all queries of a head see, and their number in each tile."""
        del length, device
        return None

    def labels(self) -> Tensor | None:
        """Vectors of relative positions (H, 2c + 1, D), see `tiled_attention`."""
        return None

    def seen_by_last(self, keys: int) -> int | None:
        """Number of keys that the last position sees, where these are the last keys; None: they are others."""
        del keys
        return None

    def is_global(self, length: int, device: torch.device) -> Bool[Tensor, " M"]:
        """Which positions are global in every example."""
        front, back = self.ends(length)
        at = torch.arange(length, device=device)
        return (at < front) | (at >= length - back)

    def sees(self, i: Tensor, j: Tensor, head: int | Tensor, is_global: Tensor, length: int) -> Tensor:
        """`visible` with the causal mask, where the shape is causal."""
        seen = self.visible(i, j, head, is_global, length)
        return seen & (j <= i) if self.shape.causal else seen

    def near(self, i: Tensor, j: Tensor, head: int, length: int) -> Tensor:
        """The pairs computed in tiles: those of `visible` that are neither global nor in `columns`."""
        return self.visible(i, j, head, torch.zeros(length, dtype=torch.bool, device=i.device), length)

    def forward(
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
        shift = None if self.period == 1 else left_padding(text_of(key_mask, query_mask), self.period)
        few = q.shape[2] < k.shape[2] and q.shape[2] <= _FEW
        if few and q.shape[2] == 1 and shift is None and (last := self.seen_by_last(k.shape[2])) is not None:
            k, v = k[:, :, -last:], v[:, :, -last:]
            return dense_attention(q, k, v, None if key_mask is None else key_mask[:, -last:], dropout=self.drop())
        if key_mask is None or shift is None:
            return self.behind_a_cache(q, k, v, key_mask) if few else self.from_the_front(q, k, v, key_mask)
        if q.shape[2] < k.shape[2]:
            return self.behind_a_cache(q, k, v, key_mask, shift)
        q, k, v, key_mask = (moved(x, shift) for x in (q, k, v, key_mask))
        return moved_back(self.from_the_front(q, k, v, key_mask), shift)

    def last(
        self,
        q: Float[Tensor, "B H 1 D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
    ) -> Float[Tensor, "B H 1 D"]:
        seen = self.seen_by_last(k.shape[2]) if key_mask is None or self.period == 1 else None
        if seen is None:
            return self.forward(q, k, v, key_mask)
        return of_groups(q, k[:, :, -seen:], v[:, :, -seen:], None if key_mask is None else key_mask[:, -seen:])

    @property
    def last_shares_masked(self) -> bool:
        return self.last_shares_keys and self.period == 1

    def from_the_front(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        """Attention of texts that begin where the pattern begins."""
        if self.ends(k.shape[2]) == (0, 0):
            return self.local(q, k, v, key_mask)
        return self.with_ends(q, k, v, key_mask, rows=(q, k, v))

    def behind_a_cache(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, shift: Tensor | None = None
    ) -> Tensor:
        """Dense attention under a mask, for few queries: the last positions of texts, each shifted by its padding."""
        keys = k.shape[2]
        reaches = [
            None if tiling.left is None else tiling.stride * (tiling.rows + tiling.left)
            for tiling in self.tilings(keys)
        ]
        reach = max((reach for reach in reaches if reach is not None), default=keys)
        if None not in reaches and self.columns(keys, q.device) is None:
            # Only the keys that a tile can meet.
            last = min(keys, q.shape[2] + reach)
            k, v = k[:, :, -last:], v[:, :, -last:]
            key_mask = None if key_mask is None else key_mask[:, -last:]
        at = torch.arange(keys, device=q.device)[None, None]
        at = at if shift is None else at - shift[:, None, None]  # (B, 1, M)
        i, j = at[..., -q.shape[2] :, None], at[..., None, -k.shape[2] :]
        heads = torch.arange(q.shape[1], device=q.device)[:, None, None]
        visible = self.sees(i, j, heads, self.is_global(keys, q.device), keys)
        return dense_attention(q, k, v, key_mask, visible=visible, dropout=self.drop())

    def check(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None = None) -> None:
        """Raise ValueError where the inputs do not fit each other or the shape."""
        check_fit(q, k, v, key_mask, self.shape, query_mask)
        if not self.shape.causal and q.shape[2] != k.shape[2]:
            raise ValueError(f"{self.name} needs as many queries as keys, got {q.shape[2]} and {k.shape[2]}")

    def with_ends(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, rows: tuple[Tensor, Tensor, Tensor]
    ) -> Tensor:
        """Attention with global positions at both ends: keys beside every tile, dense attention of their queries."""
        length = k.shape[2]
        front, back = self.ends(length)
        inner = max(0, length - front - back)
        back = length - front - inner

        def cut(x: Tensor, dim: int = 2) -> tuple[Tensor, Tensor]:
            """Split x into the part between the ends and the ends, concatenated."""
            first, between, last = x.split([front, inner, back], dim)
            return between, torch.cat([first, last], dim) if back else first

        queries = cut(rows[0])[1]
        bias = self.row_bias(queries, length)
        first, last = dense_attention(queries, *rows[1:], key_mask, bias=bias, dropout=self.drop()).split(
            [front, back], 2
        )
        if not inner:
            return torch.cat([first, last], 2)
        k_, k_ends = cut(k)
        v_, v_ends = cut(v)
        mask, seen = (None, None) if key_mask is None else cut(key_mask, 1)
        columns = Columns(self.column_keys(k_ends), v_ends, None if seen is None else bias_of(seen[:, None], q))
        between = self.local(cut(q)[0], k_, v_, mask, columns, offset=front, length=length)
        return torch.cat([first, between, last], 2)

    def column_keys(self, k: Tensor) -> Tensor:
        """Keys of the global positions for queries that are not global."""
        return k

    def row_bias(self, q: Tensor, length: int) -> Tensor | None:
        """Bias of the scores of global queries."""
        del q, length
        return None

    def local(
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
        """Attention of the positions from `offset` on to each other, and to columns that all of them see."""
        length = length or k.shape[2]
        if in_transform():
            return self._by_pairs(q, k, v, key_mask, columns, offset, length)
        if self.by_kernel(q):
            return self._by_flex(q, k, v, key_mask, columns, offset, length)
        keys, device = k.shape[2], q.device

        def visible(i: Tensor, j: Tensor, head: int) -> Tensor:
            seen = self.near(i + offset, j + offset, head, length)
            return seen & (j <= i) if self.shape.causal else seen

        tilings = self.tilings(keys)
        key_bias = None if key_mask is None else bias_of(key_mask[:, None], q)
        if (placed := self.columns(keys, device)) is not None:
            columns, key_bias = _own_columns(k, v, key_bias, *placed, causal=self.shape.causal)
        return tiled_attention(
            q, k, v, groups(tilings, q.shape[2], keys, visible, q), key_bias=key_bias, columns=columns,
            extra_blocks=self.extra_blocks(-(-keys // tilings[0].rows), device), labels=self.labels(),
            dropout=self.drop(),
        )  # fmt: skip

    def by_kernel(self, q: Tensor) -> bool:
        """Whether FlexAttention computes it: on a GPU, for whole sequences, without dropout and labels.

        Its kernel takes no heads narrower than `LEAST_WIDTH`. In decoding it would compile one for every length.
        """
        fits = q.is_cuda and q.shape[2] > 1 and q.shape[3] >= LEAST_WIDTH
        return fits and not self.drop() and self.labels() is None

    def _by_pairs(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        columns: Columns | None,
        offset: int,
        length: int,
    ) -> Tensor:
        """`local` in plain operations, over all pairs; columns stand before the other keys."""
        if self.labels() is not None:
            raise RuntimeError(f"{self.name} is not for torch.func: its relative positions are read in tiles")
        heads, queries, keys = q.shape[1], q.shape[2], k.shape[2]
        i, j = (torch.arange(keys, device=q.device)[-n:] + offset for n in (queries, keys))
        nowhere = torch.zeros(length, dtype=torch.bool, device=q.device)
        head = torch.arange(heads, device=q.device)[:, None, None]
        seen = self.sees(i[:, None], j, head, nowhere, length).expand(1, heads, -1, -1)
        if key_mask is not None:
            seen = seen & key_mask[:, None, None]
        if columns is not None and columns.k is not None and columns.v is not None:
            count = columns.k.shape[2]
            first = seen.new_ones(1, 1, 1, count) if columns.bias is None else columns.bias[:, :, None] == 0
            whole = [x.expand(max(len(first), len(seen)), heads, queries, -1) for x in (first, seen)]
            k, v, seen = torch.cat([columns.k, k], 2), torch.cat([columns.v, v], 2), torch.cat(whole, 3)
        return dense_attention(q, k, v, visible=seen, dropout=self.drop())

    def _by_flex(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        columns: Columns | None,
        offset: int,
        length: int,
    ) -> Tensor:
        """`local` by FlexAttention, columns before the other keys; the block mask is cached by length."""
        count, past = 0, k.shape[2] - q.shape[2]
        if columns is not None and columns.k is not None and columns.v is not None:
            count = columns.k.shape[2]
            if key_mask is not None or columns.bias is not None:
                counted = q.new_ones(q.shape[0], count, dtype=torch.bool)
                seen = counted if columns.bias is None else counted & (columns.bias[:, 0] == 0)
                rest = q.new_ones(q.shape[0], k.shape[2], dtype=torch.bool) if key_mask is None else key_mask
                key_mask = torch.cat([seen, rest], 1)
            k, v = torch.cat([columns.k, k], 2), torch.cat([columns.v, v], 2)
        sizes = (q.shape[2], k.shape[2], count, offset, length, q.device)
        if sizes not in self._masks:
            if len(self._masks) >= LENGTHS:
                self._masks.pop(next(iter(self._masks)))  # the oldest
            with torch.inference_mode(False):  # what is made in it could not be saved for a later backward pass
                nowhere = torch.zeros(length, dtype=torch.bool, device=q.device)
                self.prepare(k.shape[2] - count, q.device)

                def sees(_: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
                    key = (j - count).clamp(min=0) + offset
                    return (j < count) | self.sees(i + past + offset, key, head, nowhere, length)

                self._masks[sizes] = block_mask(sees, q.shape[1], q.shape[2], k.shape[2], q.device)
        return flex(q, k, v, key_mask, self._masks[sizes])

    def prepare(self, keys: int, device: torch.device) -> None:
        """Cache the tensors that `visible` indexes for this number of keys: a kernel's mask may not create a tensor."""

    def drop(self) -> float:
        """Probability of dropping a weight: 0 outside training."""
        return self.dropout if self.training else 0.0


def _own_columns(
    k: Tensor, v: Tensor, key_bias: Tensor | None, positions: Tensor, per_tile: int, *, causal: bool
) -> tuple[Columns, Tensor]:
    """Columns at positions (H, C), hidden past the end, and the bias that hides their keys in tiles."""
    batch, heads, keys, dim = k.shape
    inside = positions.clamp(max=keys - 1)
    at = inside[None, :, :, None].expand(batch, -1, -1, dim)
    bias = bias_of((positions < keys)[None], k)
    own = torch.zeros(len(positions), keys + 1, dtype=torch.bool, device=k.device)
    own = own.scatter(1, positions.clamp(max=keys), torch.ones_like(positions, dtype=torch.bool))[:, :keys]
    other_bias = bias_of(~own[None], k)
    if key_bias is not None:
        bias = bias + key_bias.expand(-1, heads, -1).gather(2, inside.expand(batch, -1, -1))
        other_bias = other_bias + key_bias
    columns = Columns(k.gather(2, at), v.gather(2, at), bias, positions if causal else None, per_tile * causal)
    return columns, other_bias
