"""Star-Transformer. Guo 2019, arXiv:1902.09113, algorithm 1, one step t: a ring of satellites h and a relay s.

C_i = [h_{i-1}; h_i; h_{i+1}; e_i; s], h'_i = LN(ReLU(MultiAtt(h_i, C_i))), then s' = LN(ReLU(MultiAtt(s, [s; H']))).
Before the first step h = e and s is the mean of e. No residual and no feed-forward block. The ring is closed, and of
the kept positions alone: the first and the last are neighbours. Time O(N d^2 + N d), memory O(N d).
No causal form: the relay sees all positions.
"""

from collections.abc import Iterator
from functools import reduce

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from greenformers.attention._contract import accurate
from greenformers.attention._dense import dense_attention
from greenformers.blocks._contract import Block, Size
from greenformers.lowrank.linear import is_plain


class _MultiAtt(nn.Module):
    """The four projections of a multi-head attention."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.q, self.k, self.v, self.output = (size.linear_layer(name) for name in ("q", "k", "v", "output"))


class Star(Block):
    """One step of the satellites and of the relay.

    Its memory (B, 1 + N, d) holds the relay s and the embeddings e, which every step reads again.

    Args:
        size: Sizes of the network around it. `ranks` holds for the projections of satellites and relay alike, `dropout`
            for the outputs of their attention, and `feed_forward` is not used.

    Raises:
        ValueError: The network is causal.
    """

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        if size.causal:
            raise ValueError("star has no causal form: the relay sees all positions")
        self.satellites, self.relay = _MultiAtt(size), _MultiAtt(size)
        self.satellites_norm = size.make_norm()
        self.relay_norm = size.make_norm()
        self.dropout = nn.Dropout(size.dropout)

    def forward(
        self,
        x: Float[Tensor, "B N d"],
        mask: Bool[Tensor, "B N"] | None = None,
        memory: Float[Tensor, "B S d"] | None = None,
    ) -> tuple[Float[Tensor, "B N d"], Float[Tensor, "B S d"]]:
        """One step.

        Args:
            x: The satellites h (B, N, d): in the first layer the embeddings e.
            mask: True = keep (B, N).
            memory: The relay s and the embeddings e, S = 1 + N positions; None in the first layer.

        Returns:
            The new h; the new s with the same e.

        Raises:
            ValueError: The memory is not of 1 + N positions.
        """
        B, N, d = x.shape
        if memory is not None and memory.shape != (B, 1 + N, d):
            raise ValueError(f"memory must be {(B, 1 + N, d)}, the relay and the embeddings, got {tuple(memory.shape)}")
        if mask is not None:  # a weight of 0 times NaN would be NaN
            x = x.masked_fill(~mask[..., None], 0.0)
        first = memory is None
        memory = torch.cat([_mean(x, mask), x], 1) if memory is None else memory
        h = self._step_satellites(x, memory, mask, first)
        s = self._step_relay(memory[:, :1], h, mask)
        return h, torch.cat([s, memory[:, 1:]], 1)

    def _step_satellites(self, h: Tensor, memory: Tensor, mask: Tensor | None, first: bool) -> Tensor:
        """Attention of each satellite to the five vectors of C_i, whose keys and values are projected once."""
        layers, heads = self.satellites, self.size.heads
        q = layers.q(h).unflatten(-1, (heads, -1))  # (B, N, H, D)
        q = q * q.shape[-1] ** -0.5  # before the products, which float16 might not hold
        ring = None if mask is None else _neighbours(mask)

        def contexts(projection: nn.Module) -> Iterator[Tensor]:
            """Yield h_{i-1}, h_i, h_{i+1}, e_i and s of each satellite, projected, (B, N or 1, H, D)."""
            state = projection(memory).unflatten(-1, (heads, -1))
            own = state[:, 1:] if first else projection(h).unflatten(-1, (heads, -1))
            yield own.roll(1, 1) if ring is None else _rows(own, ring[0])
            yield own
            yield own.roll(-1, 1) if ring is None else _rows(own, ring[1])
            yield state[:, 1:]
            yield state[:, :1]

        # Five weights a head are too few for a matrix product: sums of products, for one of the five after the other.
        scores = torch.cat([(q * key).sum(-1, keepdim=True) for key in contexts(layers.k)], -1)  # (B, N, H, 5)
        weights = scores.softmax(-1).split(1, -1)
        mixed = reduce(torch.add, (p * value for p, value in zip(weights, contexts(layers.v), strict=True)))
        return self.satellites_norm(F.relu(self.dropout(layers.output(mixed.flatten(2)))))

    def _step_relay(self, s: Tensor, h: Tensor, mask: Tensor | None) -> Tensor:
        layers, context = self.relay, torch.cat([s, h], 1)
        # In half precision products are rounded where they are largest.
        if is_plain(layers.k) and is_plain(layers.v) and context.dtype == accurate(context):
            attended = self._asked(layers.q(s), context, mask)
        else:
            q, k, v = (
                projection(x).unflatten(-1, (self.size.heads, -1)).transpose(1, 2)
                for projection, x in ((layers.q, s), (layers.k, context), (layers.v, context))
            )
            key_mask = None if mask is None else F.pad(mask, (1, 0), value=True)
            attended = dense_attention(q, k, v, key_mask).transpose(1, 2).flatten(2)  # (B, 1, d)
        return self.relay_norm(F.relu(self.dropout(layers.output(attended))))

    def _asked(
        self, q: Float[Tensor, "B 1 d"], context: Float[Tensor, "B M d"], mask: Bool[Tensor, "B N"] | None
    ) -> Float[Tensor, "B 1 d"]:
        """Attention of one query a head, to which its projections of keys and values go.

        q W_k c_i = (W_k^T q) c_i and sum_i p_i W_v c_i = W_v sum_i p_i c_i: N H d multiply-adds each in place of N d^2.
        A bias of keys adds as much to all scores, and one of values to their mean.
        """
        layers, heads = self.relay, self.size.heads
        W_k, W_v = (layer.weight.unflatten(0, (heads, -1)) for layer in (layers.k, layers.v))  # (H, D, d)
        of_heads = q[:, 0].unflatten(-1, (heads, -1)) * W_k.shape[1] ** -0.5  # (B, H, D)
        scores = torch.einsum("bhd,hdc->bhc", of_heads, W_k) @ context.mT  # (B, H, M)
        if layers.k.bias is not None:  # which changes nothing, and is a part of the network all the same
            scores = scores + (of_heads * layers.k.bias.unflatten(0, (heads, -1))).sum(-1, keepdim=True)
        if mask is not None:
            scores = scores.masked_fill(~F.pad(mask, (1, 0), value=True)[:, None], -torch.inf)
        mixed = torch.einsum("bhc,hdc->bhd", scores.softmax(-1) @ context, W_v).flatten(1)[:, None]
        return mixed if layers.v.bias is None else mixed + layers.v.bias


def _mean(x: Float[Tensor, "B N d"], mask: Bool[Tensor, "B N"] | None) -> Float[Tensor, "B 1 d"]:
    """Mean over the kept positions, as x is 0 at masked ones; 0 where none is kept."""
    if mask is None:
        return x.mean(1, keepdim=True)
    count = mask.sum(1).clamp(min=1)[:, None, None]
    return (x.sum(1, keepdim=True, dtype=accurate(x)) / count).to(x.dtype)


def _neighbours(mask: Bool[Tensor, "B N"]) -> Int[Tensor, "2 B N"]:
    """The kept positions before and after each position, around the ring; arbitrary where none is kept."""
    N = mask.shape[1]
    place = torch.arange(N, device=mask.device)
    # Up to each position the last kept one, from each on the first one. Shifted by one, the ends are round the ring.
    before = torch.where(mask, place, -1).cummax(1).values
    after = torch.where(mask, place, N).flip(1).cummin(1).values.flip(1)
    last, first = before[:, -1:], after[:, :1]
    before, after = before.roll(1, 1), after.roll(-1, 1)
    before, after = torch.where(before < 0, last, before), torch.where(after == N, first, after)
    return torch.stack([before, after]).clamp(0, N - 1)


def _rows(x: Float[Tensor, "B N H D"], at: Int[Tensor, "B N"]) -> Float[Tensor, "B N H D"]:
    """The vectors of x at the positions `at` of each example."""
    rows = at + x.shape[1] * torch.arange(len(x), device=x.device)[:, None]
    return x.flatten(0, 1).index_select(0, rows.flatten()).view(x.shape)
