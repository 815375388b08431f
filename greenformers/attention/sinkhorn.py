"""Sinkhorn attention. Tay 2020, arXiv:2002.11296: blocks of keys are sorted softly, and a block attends its match.

R_ij = (sum of block i's queries) (sum of block j's keys), scaled to unit variance; P = Sinkhorn((R + Gumbel noise) /
T), rows and columns of exp normalised in turn (section 3.1); block i's queries attend their own keys and P's mixture of
all blocks, sum_j P_ij K_j, position by position (3.2). SortCut (3.3): all queries attend the first n sorted blocks.
Time O(N b D + N^2 D / b), memory O(N (b + D)), with blocks of b.

Causal: what block i is matched by are the keys before it, and with blocks before it alone; rows are normalised and
columns are not, as a column is read by later blocks.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from greenformers.attention._contract import Attention, Shape, check_lengths, exact

LEAST = 1e-9
"""A place of a mixture that is padding but for this share is padding: its square is still a number in float32."""


class Sinkhorn(Attention):
    """Attention to the own block and to one that is sorted there.

    Args:
        shape: heads, width and length.
        block: b.
        cut: n of SortCut; None: no SortCut.
        iterations: of rows and columns.
        temperature: T.
        noise: Gumbel noise in training.
        dropout: probability of dropping an attention weight in training.

    Raises:
        ValueError: cross-attention, causal SortCut, or an option out of range.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        block: int = 64,
        cut: int | None = None,
        iterations: int = 7,
        temperature: float = 0.75,
        noise: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(shape)
        if shape.cross:
            raise ValueError("sinkhorn has no cross-attention: a query has no own block in another sequence")
        if cut is not None and shape.causal:
            raise ValueError("sinkhorn has no causal form with cut: all queries see the same blocks")
        for name, value in (("block", block), ("iterations", iterations), ("cut", 1 if cut is None else cut)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not temperature > 0:
            raise ValueError(f"temperature must be above 0, got {temperature}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        self.block, self.cut, self.iterations, self.temperature = block, cut, iterations, temperature
        self.noise, self.dropout = noise, dropout

    def forward(  # noqa: D102
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B H N D"]:
        check_lengths(q, k, v, key_mask, self.shape)
        B, H, N, D = q.shape
        M = k.shape[2]
        if N != M and not self.shape.causal:
            raise ValueError(f"there must be as many queries as keys, got {N} and {M}")
        keep = q.new_ones(1, M, dtype=torch.bool) if key_mask is None else key_mask
        asks = keep if query_mask is None else query_mask
        short = -M % self.block
        keep = F.pad(keep, (0, short)).unflatten(1, (-1, self.block))  # (B or 1, n, b)
        k, v = (F.pad(x, (0, 0, 0, short)).unflatten(2, (-1, self.block)) for x in (k, v))  # (B, H, n, b, D)
        here = keep[:, None, :, :, None]
        if key_mask is not None:
            k, v = k.masked_fill(~here, 0.0), v.masked_fill(~here, 0.0)
        if self.shape.causal:
            P = self._past(k, keep)
        else:
            asks = F.pad(asks, (0, short)).unflatten(1, (-1, self.block))
            queries = F.pad(q, (0, 0, 0, short)).unflatten(2, (-1, self.block))
            P = self._permutation(queries.masked_fill(~asks[:, None, :, :, None], 0.0), k, asks, keep)
        if self.cut is not None:
            P = P[:, :, : self.cut]
        keys, values, share = _sorted(P.to(k.dtype), k, v, None if key_mask is None and not short else keep)
        if self.cut is not None:
            bias = None if share is None else _log(share.flatten(2))[:, :, None]
            return self._softmax(q, keys.flatten(2, 3), values.flatten(2, 3), bias)
        # The queries are the last of the positions: with those of a cache before them, only their blocks are read.
        first = (M - N) // self.block
        lead = M - N - first * self.block
        queries = F.pad(q, (0, 0, lead, short)).reshape(B, H, -1, self.block, D)
        both = [torch.cat([own, other], 3)[:, :, first:] for own, other in ((k, keys), (v, values))]
        # Without padding, and in both directions, all is seen.
        whole = share is None and not self.shape.causal
        bias = None if whole else self._bias(P, share, keep)[:, :, first:].flatten(1, 2)
        out = self._softmax(queries.flatten(1, 2), both[0].flatten(1, 2), both[1].flatten(1, 2), bias)
        return out.reshape(B, H, -1, D)[:, :, lead : lead + N]

    def _scaled(self, one: Tensor, other: Tensor, counts: Tensor, others: Tensor) -> Tensor:
        """R of sums (B, H, n, D) of so many vectors (B or 1, n)."""
        R = exact(one) @ exact(other).mT
        size = exact(counts.to(one.dtype)).clamp(min=1)[:, None, :, None]
        width = exact(others.to(one.dtype)).clamp(min=1)[:, None, None, :]
        R = R / (size * width * one.shape[3]).sqrt()
        if self.noise and self.training:
            # -log of an exponential variable; never of 0.
            R = R - torch.empty_like(R).exponential_().clamp(min=1e-20).log()
        return R / self.temperature

    def _permutation(self, q: Tensor, k: Tensor, asks: Tensor, keep: Tensor) -> Float[Tensor, "B H n n"]:
        """Gumbel-Sinkhorn, in logarithms; blocks that hold nothing but padding are no part of it."""
        L = self._scaled(q.sum(3), k.sum(3), asks.sum(2), keep.sum(2))
        rows, columns = asks.any(2)[:, None, :, None], keep.any(2)[:, None, None, :]
        gone = ~(rows & columns)
        # Finite: a row or column that is gone as a whole has no logarithm of a sum.
        least = torch.finfo(L.dtype).min / 4
        for _ in range(self.iterations):
            for dim in (3, 2):
                L = L.masked_fill(gone, least)
                L = L - L.logsumexp(dim, keepdim=True)
        # A block whose queries are all masked is read by nobody.
        return L.exp().masked_fill(gone, 0.0)

    def _past(self, k: Tensor, keep: Tensor) -> Float[Tensor, "B H n n"]:
        """Row i: softmax over the blocks before i, by the keys before block i."""
        sums, counts = k.sum(3), keep.sum(2)
        before = sums.cumsum(2).roll(1, 2)
        before[:, :, 0] = 0
        earlier = counts.cumsum(1).roll(1, 1)
        earlier[:, 0] = 0
        L = self._scaled(before, sums, earlier, counts)
        blocks = L.shape[-1]
        seen = torch.ones(blocks, blocks, dtype=torch.bool, device=k.device).tril(-1) & keep.any(2)[:, None, None, :]
        none = ~seen.any(-1, keepdim=True)
        return L.masked_fill(~(seen | none), -torch.inf).softmax(-1).masked_fill(~seen, 0.0)

    def _bias(self, P: Tensor, share: Tensor | None, keep: Tensor) -> Tensor:
        """Added to the scores of the own block and of the sorted one, (B or 1, H or 1, n, b or 1, 2 b)."""
        blocks = keep.shape[1]
        own = keep[:, None, :, None, :].expand(-1, -1, -1, self.block if self.shape.causal else 1, -1)
        if self.shape.causal:
            own = own & torch.ones(self.block, self.block, dtype=torch.bool, device=keep.device).tril()
        matched = (P > 0).any(-1)  # (B, H, n)
        other = matched[..., None].expand(-1, -1, -1, self.block).to(P.dtype).log()
        if share is not None:
            other = torch.where(matched[..., None], _log(share), -torch.inf)
        own = torch.zeros(own.shape, dtype=P.dtype, device=P.device).masked_fill(~own, -torch.inf)
        shape = (*other.shape[:2], blocks, own.shape[3], self.block)
        return torch.cat([own.expand(shape), other[:, :, :, None].expand(shape)], -1)

    def _softmax(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        if bias is None:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        none = (bias == -torch.inf).all(-1, keepdim=True)
        # A row without keys would be 0 / 0: let it see all, then set it to 0.
        bias = bias.masked_fill(none, 0.0).to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout).masked_fill(none, 0.0)


def _log(share: Tensor) -> Tensor:
    """The logarithm, of 0 without its derivative."""
    return torch.where(share > 0, share, 1.0).log().masked_fill(share <= 0, -torch.inf)


def _sorted(P: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Mixtures of blocks (B, H, n, b, D) by P (B, H, m, n), and which share of each place is not padding (B, H, m, b).

    A mixture is that of the kept positions at its place, as large as without padding.
    """
    keys, values = ((P @ x.flatten(3)).unflatten(3, x.shape[3:]) for x in (k, v))
    if keep is None:
        return keys, values, None
    whole = exact(P)
    share = (whole @ exact(keep[:, None].to(P.dtype))) / whole.sum(-1, keepdim=True).clamp(min=LEAST)
    share = share.masked_fill(share < LEAST, 0.0).clamp(max=1.0)
    scale = torch.where(share > 0, share, 1.0)[..., None]
    keys, values = ((exact(x) / scale).to(x.dtype) for x in (keys, values))
    return keys, values, share
