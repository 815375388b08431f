"""Softmax attention of blocks to their own keys and to a mixture of all blocks, some sequences and heads at a time.

Mixtures of all heads, beside the own blocks, would take most of the memory, and writing them to new memory most of the
time: they are computed for a few heads at a time, and again in the backward pass.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from greenformers._gradients import by_hand
from greenformers._torch import in_transform, softmax_gradient
from greenformers.attention._contract import exact, full_precision
from greenformers.attention._dropout import drop_, new_seed

TILES = 32
"""Number of blocks at a time: enough for wide products, few enough to need little memory."""

HIDDEN = -1e18
"""Score of a key that is not seen."""


def attend_sorted(
    q: Float[Tensor, "B H m b D"],
    k: Float[Tensor, "B H n b D"],
    v: Float[Tensor, "B H n b D"],
    P: Float[Tensor, "B H m n"],
    share: Float[Tensor, "B H m b"] | None,
    keep: Bool[Tensor, "B m b"] | None,
    *,
    causal: bool,
    dropout: float,
) -> Float[Tensor, "B H m b D"]:
    """Attention of block i of the last m to its own b keys and to the b of sum_j P_ij k_j.

    Args:
        q: Queries (B, H, m, b, D).
        k: Keys (B, H, n, b, D), 0 at padding, as in `v`.
        v: Values (B, H, n, b, D).
        P: Mixing weights of blocks (B, H, m, n).
        share: Share of kept keys in each position of a mixture (B, H, m, b). The mixture is divided by it, and its
            weight in the softmax multiplied by it; positions with share 0 are not seen. None: 1.
        keep: Mask of the own keys (B, m, b), given together with `share`. None: all are seen.
        causal: Whether of its own keys a query sees only those up to its position.
        dropout: Probability of dropping an attention weight.
    """
    with full_precision(q):
        if in_transform():
            return _plain(q, k, v, P, share, keep, causal, dropout)
        out: Tensor = _Sorted.apply(q, k, v, P, share, keep, causal, dropout, new_seed(dropout))
        return out


def _groups(P: Tensor) -> Iterator[tuple[slice, slice]]:
    """Slices of sequences and heads; all at once where compiled or not on a CPU."""
    whole = torch.compiler.is_compiling() or P.device.type != "cpu"
    batch, heads, blocks, _ = P.shape
    several = heads if whole else min(heads, max(1, TILES // blocks))
    some = batch if whole else max(1, TILES // (blocks * heads))
    for at in range(0, batch, some):
        for head in range(0, heads, several):
            yield slice(at, at + some), slice(head, head + several)


class _Group:
    """The computation for a slice of sequences and heads.

    Args:
        given: The tensors q, k, v, P and share.
        some: Slices of the sequences and of the heads.
    """

    def __init__(self, given: tuple[Any, ...], some: tuple[slice, slice]) -> None:
        q, k, v, P, share = given
        self.P = exact(P[some])
        self.first = P.shape[3] - P.shape[2]  # index of the first own block
        self.scale = q.shape[4] ** -0.5
        self.share = None if share is None else exact(share[some])
        # Factor of the mixtures.
        self.whole = None if self.share is None else 1 / torch.where(self.share > 0, self.share, 1.0)
        self.q = exact(q[some]).flatten(0, 2)
        self.k, self.v = (exact(x[some]) for x in (k, v))  # (B, H, n, b, D)

    def both(self, x: Tensor) -> Float[Tensor, "BHm 2b D"]:
        """Each own block, followed by its mixture."""
        blocks, size = self.P.shape[2], x.shape[3]
        both = x.new_empty(*x.shape[:2], blocks, 2, size, x.shape[4])
        both[:, :, :, 0] = x[:, :, self.first :]
        mixed = (self.P @ x.flatten(3)).view_as(both[:, :, :, 1])
        both[:, :, :, 1] = mixed if self.whole is None else mixed.mul_(self.whole[..., None])
        return both.view(-1, 2 * size, x.shape[4])

    def weights(self, keep: Tensor | None, causal: bool) -> Float[Tensor, "B H m b 2b"]:
        """Softmax over the own keys that are kept and not later than the query, and over the mixture."""
        scores = _scaled(self.q, self.both(self.k).mT, self.scale)
        scores = scores.view(*self.P.shape[:3], *scores.shape[1:])
        hidden = self._hide_(scores, keep, causal)
        weights = torch.softmax(scores, -1, out=scores)
        return weights if hidden is None else weights.masked_fill_(hidden, 0.0)

    def _hide_(self, scores: Tensor, keep: Tensor | None, causal: bool) -> Tensor | None:
        """Hide scores (B, H, m, b, 2 b) of keys that are not seen, and return which queries see none."""
        size = scores.shape[3]
        own, mixed = scores[..., :size], scores[..., size:]
        if causal:
            own += torch.full((size, size), HIDDEN, dtype=scores.dtype, device=scores.device).triu_(1)
        if keep is not None:
            own += torch.zeros_like(keep, dtype=scores.dtype).masked_fill_(~keep, HIDDEN)[:, None, :, None]
        if self.share is not None:
            real = self.share > 0
            bias = torch.where(real, self.share, 1.0).log_().masked_fill_(~real, HIDDEN)
            mixed += bias[..., None, :]
        if keep is None or self.share is None:
            return None
        seen = keep.cumsum(-1) > 0 if causal else keep.any(-1, keepdim=True)
        return ~(seen[:, None] | real.any(-1, keepdim=True))[..., None]

    def gradients(self, grad: Tensor, weights: Tensor, grads: list[Tensor], dropout: float, seed: int) -> int:
        """Write the gradients of q, k, v, P and share from that of the output (B, H, m, b, D); return the next seed."""
        weights, size = weights.flatten(0, 2), grad.shape[3]
        grad = exact(grad).flatten(0, 2).contiguous()
        of_q, of_k, of_v, of_P, *of_share = grads
        # Values first, then keys: half as much memory at a time.
        both = self.both(self.v)
        of_scores = torch.bmm(grad, both.mT)
        after = drop_(of_scores, dropout, seed)
        of_scores = softmax_gradient(of_scores, weights)
        if dropout:
            weights = weights.clone()
            drop_(weights, dropout, seed)
        share, product = self._side(torch.bmm(weights.mT, grad), both, self.v, of_v)
        of_P.copy_(product)
        both = self.both(self.k)
        _product(of_scores, both, of_q, self.scale)
        of_keys, product = self._side(_scaled(of_scores.mT, self.q, self.scale), both, self.k, of_k)
        of_P.add_(product)
        if share is not None and of_keys is not None and self.share is not None and self.whole is not None:
            share = of_scores[..., size:].sum(1).view_as(share) - share - of_keys
            of_share[0].copy_(share.mul_(self.whole).masked_fill_(self.share <= 0, 0.0))
        return after

    def _side(self, grad: Tensor, both: Tensor, x: Tensor, of_x: Tensor) -> tuple[Tensor | None, Tensor]:
        """From the gradient of `both`, write that of `x`; return those of `whole`, divided by it, and of P."""
        shape = (*self.P.shape[:3], 2, *x.shape[3:])
        own, mixed = grad.view(shape).unbind(3)
        of_whole = None
        if self.whole is not None:
            of_whole = (mixed * both.view(shape)[:, :, :, 1]).sum(-1)
            mixed = mixed * self.whole[..., None]
        mixed = mixed.flatten(3).flatten(0, 1)
        _product(self.P.flatten(0, 1).mT, mixed, of_x.flatten(3))
        of_x[:, :, self.first :] += own
        return of_whole, torch.bmm(mixed, x.reshape(len(mixed), x.shape[2], -1).mT).view_as(self.P)


def _scaled(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Scale a @ b."""
    return torch.baddbmm(a.new_empty(1, 1, 1), a, b, beta=0, alpha=scale)


def _product(a: Tensor, b: Tensor, out: Tensor, scale: float = 1.0) -> None:
    """Scale a @ b (R, r, c) into `out`, whose elements are in the same order."""
    out = out.view(len(a), a.shape[1], b.shape[2])
    into = out if out.dtype == a.dtype else a.new_empty(out.shape)
    torch.baddbmm(into, a, b, beta=0, alpha=scale, out=into)
    if into is not out:
        out.copy_(into)


def _plain(
    q: Tensor, k: Tensor, v: Tensor, P: Tensor, share: Tensor | None, keep: Tensor | None, causal: bool, dropout: float
) -> Tensor:
    """The output of `_Sorted`, in operations that torch differentiates."""
    q_, k_, v_, P_ = (exact(x) for x in (q, k, v, P))
    first, size, real = P.shape[3] - P.shape[2], k.shape[3], None if share is None else exact(share) > 0

    def both(x: Tensor) -> Tensor:
        mixed = (P_ @ x.flatten(3)).unflatten(3, x.shape[3:])
        if share is not None and real is not None:
            mixed = mixed / torch.where(real, exact(share), 1.0)[..., None]
        return torch.cat([x[:, :, first:], mixed], 3)

    scores = q_ @ both(k_).mT * q.shape[4] ** -0.5  # (B, H, m, b, 2b)
    seen = scores.new_ones(size, size, dtype=torch.bool)
    seen = seen.tril() if causal else seen
    seen = seen if keep is None else keep[:, None, :, None] & seen
    seen = torch.cat([seen.expand(*scores.shape[:4], size), torch.ones_like(scores[..., size:], dtype=torch.bool)], 4)
    if share is not None and real is not None:
        bias = torch.where(real, exact(share), 1.0).log()[..., None, :]
        scores = torch.cat([scores[..., :size], scores[..., size:] + bias], 4)
        seen = torch.cat([seen[..., :size], seen[..., size:] & real[..., None, :]], 4)
    weights = scores.masked_fill(~seen, HIDDEN).softmax(-1).masked_fill(~seen, 0.0)
    return (F.dropout(weights, dropout) @ both(v_)).to(v.dtype)


def _again(ctx: Any, q: Tensor, k: Tensor, v: Tensor, P: Tensor, share: Tensor | None) -> Tensor:
    causal, dropout, _ = ctx.options
    if dropout:
        raise RuntimeError(f"sinkhorn has no second derivative with dropout: it must be 0, got {dropout}")
    with full_precision(q):
        return _plain(q, k, v, P, share, ctx.saved_tensors[5], causal, 0.0)


class _Sorted(torch.autograd.Function):
    """Weights are stored for the backward pass; keys and values are computed again."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, P: Tensor, share: Tensor | None, keep: Tensor | None,
        causal: bool, dropout: float, seed: int,
    ) -> Tensor:  # fmt: skip
        given, stored = (q, k, v, P, share), []
        ctx.options = causal, dropout, seed
        out = v.new_empty(q.shape)
        for some in _groups(P):
            group = _Group(given, some)
            weights = group.weights(None if keep is None else keep[some[0]], causal)
            if any(ctx.needs_input_grad):
                stored.append(weights)
            if dropout:
                weights = weights.clone()
                seed = drop_(weights, dropout, seed)
            _product(weights.flatten(0, 2), group.both(group.v), out[some])
        ctx.save_for_backward(*given, keep, *stored)
        return out

    @staticmethod
    @by_hand(5, _again)
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        saved, (_, dropout, seed) = ctx.saved_tensors, ctx.options  # read once: checkpoints give them once
        given, stored = saved[:5], saved[6:]
        gradients = [None if x is None else x.new_empty(x.shape) for x in given]
        with full_precision(dout):
            for some, weights in zip(_groups(given[3]), stored, strict=True):
                grads = [x[some] for x in gradients if x is not None]
                seed = _Group(given, some).gradients(dout[some], weights, grads, dropout, seed)
        return (*gradients, None, None, None, None)
