"""Causal attention with a feature map: query i, of the last N of M positions, sees the keys up to its own position.

Within a chunk by its scores, and before it by the sums of `_kernel_sums.py`. See `_kernelized.py`.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from greenformers._gradients import by_hand
from greenformers.attention._contract import exact, full_precision, on_gpu
from greenformers.attention._feature_map import FeatureMap
from greenformers.attention._kernel_sums import (
    Keys,
    State,
    added,
    before_and_at,
    empty,
    floor,
    in_chunks,
    keys_of,
    least,
    numbers,
    of_outputs,
    of_sums,
    reciprocal,
    write_keys,
)

_SIDE = 64
"""Positions of a chunk where several are computed side by side."""


def _within(phi: Tensor, keys: Keys, before: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    """The scores (B, H, C, C) of a chunk, the factors exp(shift_j - m_i) in them, and m (B, H, C or 1, 1)."""
    scores = (phi @ keys.phi.mT).tril()
    if keys.shift is None:
        return scores, None, before
    m = torch.maximum(keys.shift.detach().cummax(2).values, before)
    decay = _decay(keys.shift, m)
    return scores * decay, decay, m


def _decay(shift: Tensor, m: Tensor) -> Tensor:
    """Factors exp(shift_j - m_i) (B, H, C, C), at most 1 also for the keys after i, which do not count."""
    return (shift.mT - m).clamp(max=0).exp()


def _forward(
    q: Tensor, keys: Keys, features: FeatureMap, state: State, chunk: int
) -> tuple[Tensor, Tensor, Tensor, State]:
    """Causal attention of a chunk on top of a state: outputs, 1 / their denominators, m, and the state after it."""
    if (keys.shift is None or on_gpu(q)) and q.shape[2] > (side := min(chunk, _SIDE)):
        return _side_by_side(q, keys, features, state, side)
    phi = features.queries(q)
    scores, _, m = _within(phi, keys, state.m)
    sums = phi @ state.both if keys.shift is None else (state.m - m).exp() * (phi @ state.both)
    scale = reciprocal(sums[..., -1:] + scores.sum(-1, keepdim=True))
    return (sums[..., :-1] + scores @ keys.v) * scale, scale, m, added(state, keys)


def _together(q: Tensor, features: FeatureMap, chunk: int) -> int:
    """Number of positions taken at a time: a chunk, or, side by side, as many chunks as `numbers` allows."""
    some = numbers(q) // max(1, q.shape[0] * q.shape[1] * features.width)
    return chunk if features.has_shifts and not on_gpu(q) else max(chunk, some // chunk * chunk)


def _side_by_side(
    q: Tensor, keys: Keys, features: FeatureMap, state: State, side: int
) -> tuple[Tensor, Tensor, Tensor, State]:
    """`_forward` in chunks of `side` positions that are computed at once."""
    batch, heads, count, _ = q.shape
    missing = -count % side

    def chunks(x: Tensor, value: float = 0.0) -> Tensor:
        # Heads lie between positions: products would copy them, each anew.
        whole = F.pad(x, (0, 0, 0, missing), value=value) if missing else x
        return whole.contiguous().unflatten(2, (-1, side))

    values = torch.cat([keys.v, keys.v.new_ones(batch, heads, count, 1)], 3)
    phi, of_keys, values = chunks(features.queries(q)), chunks(keys.phi), chunks(values)
    scores = (phi @ of_keys.mT).tril()
    if keys.shift is None:
        # (B, H, G + 1, F, D + 1): sums over the keys before each chunk, and over all keys.
        before, m, last = torch.cat([state.both[:, :, None], of_keys.mT @ values], 2).cumsum(2), state.m, state.m
        sums = scores @ values + phi @ before[:, :, :-1]
    else:
        shift = chunks(keys.shift, floor(q))
        tops = shift.detach().amax(3, keepdim=True)  # of each chunk (B, H, G, 1, 1)
        m = torch.maximum(keys.shift.detach().cummax(2).values, state.m)
        of_chunks = (of_keys * (shift - tops).exp()).mT @ values
        before, highest = _falling(state, of_chunks, tops)
        m_ = chunks(m)
        sums = (scores * _decay(shift, m_)) @ values + (highest[:, :, :-1] - m_).clamp(max=0).exp() * (
            phi @ before[:, :, :-1]
        )
        last = highest[:, :, -1]
    sums = sums.flatten(2, 3)[:, :, :count]
    scale = reciprocal(sums[..., -1:])
    after = State(before[:, :, -1, :, :-1], before[:, :, -1, :, -1:], last)
    return sums[..., :-1] * scale, scale, m, after


def _falling(state: State, of_chunks: Tensor, tops: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over the keys before each chunk and over all (B, H, G + 1, F, D + 1), times exp(-m), and that m.

    Args:
        state: The sums before the first chunk.
        of_chunks: The sums over each chunk (B, H, G, F, D + 1), times exp(-top).
        tops: The largest shift of each chunk (B, H, G, 1, 1).
    """
    tops = torch.cat([state.m[:, :, None], tops], 2)
    highest = tops.cummax(2).values
    share = (tops.flatten(2)[:, :, None] - highest.flatten(2)[..., None]).clamp(max=0).exp().tril()  # (B, H, G+1, G+1)
    sums = torch.cat([state.both[:, :, None], of_chunks], 2)
    return (share @ sums.flatten(3)).view_as(sums), highest


def _single(q: Tensor, keys: Keys, features: FeatureMap, state: State) -> tuple[Tensor, State]:
    """`_forward` for a single position, whose output comes from the state after it."""
    phi, S, z, m = features.queries(q), state.S, state.z, state.m
    of_key = keys.phi.mT  # (B, H, F, 1)
    if keys.shift is not None:
        m = torch.maximum(keys.shift.detach(), state.m)
        of_key, before = of_key * (keys.shift - m).exp(), (state.m - m).exp()
        S, z = before * S, before * z
    after = State(torch.addcmul(S, of_key, keys.v), z + of_key, m)
    return (phi @ after.S) / (phi @ after.z).clamp(min=least(S)), after


def _of_scores(grad: Tensor, keys: Keys) -> Tensor:
    """Gradients of the scores of a chunk (B, H, C, C), 0 where the key comes after the query."""
    return (grad[..., :-1] @ keys.v.mT).add_(grad[..., -1:]).tril_()


def stepped(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, features: FeatureMap, chunk: int, state: State
) -> tuple[Tensor, State]:
    """Causal attention on top of a state, and the state after it, in operations that torch differentiates."""
    if k.shape[2] > q.shape[2]:
        (k0, v0, mask0), (k, v, key_mask) = before_and_at(q, k, v, key_mask)
        for k_, v_, mask in in_chunks(chunk, k0, v0, mask=mask0):
            state = added(state, keys_of(k_, v_, mask, features))
    if q.shape[2] == 1:
        out, state = _single(exact(q), keys_of(k, v, key_mask, features), features, state)
        return out.to(q.dtype), state
    outs = [q[:, :, :0]]
    for q_, k_, v_, mask in in_chunks(_together(q, features, chunk), q, k, v, mask=key_mask):
        out, _, _, state = _forward(exact(q_), keys_of(k_, v_, mask, features), features, state, chunk)
        outs.append(out.to(q.dtype))
    return torch.cat(outs, 2), state


def plain_causal(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, features: FeatureMap, chunk: int) -> Tensor:
    """The output of `Causal`, in operations that torch differentiates."""
    with full_precision(q):
        return stepped(q, k, v, key_mask, features, chunk, empty(q, features))[0]


class Causal(torch.autograd.Function):
    """Query i, of the last N of M positions, sees the keys up to its own position."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, features: FeatureMap, chunk: int
    ) -> Tensor:
        state, out = empty(q, features), torch.empty_like(q)
        scale, m = (state.S.new_empty(*q.shape[:3], 1) for _ in range(2))
        earlier, present = before_and_at(q, k, v, key_mask)
        with full_precision(q):
            for k_, v_, mask in in_chunks(chunk, *earlier[:2], mask=earlier[2]):
                state = added(state, keys_of(k_, v_, mask, features))
            before = state
            places, size = (out, scale, m), _together(q, features, chunk)
            for q_, k_, v_, *places_, mask in in_chunks(size, q, *present[:2], *places, mask=present[2]):
                keys = keys_of(k_, v_, mask, features)
                mixed, *rest, state = _forward(exact(q_), keys, features, state, chunk)
                for place, value in zip(places_, (mixed, *rest), strict=True):
                    place.copy_(value)
        ctx.save_for_backward(q, k, v, key_mask, out, scale, m, *before)
        ctx.features, ctx.chunk = features, chunk
        return out

    @staticmethod
    @by_hand(3, lambda ctx, q, k, v: plain_causal(q, k, v, ctx.saved_tensors[3], ctx.features, ctx.chunk))
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, key_mask, out, scale, m, *before = ctx.saved_tensors
        features, chunk, state = ctx.features, ctx.chunk, State(*before)
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        (k0, v0, mask0), (k1, v1, mask1) = before_and_at(q, k, v, key_mask)
        (dk0, dv0, _), (dk1, dv1, _) = before_and_at(q, dk, dv, None)
        # The largest shift before each chunk.
        firsts = [state.m, *(m_[:, :, -1:] for m_ in m.split(chunk, 2))]
        with full_precision(dout):
            # Gradients of queries, from the state before each chunk.
            for q_, dq_, dout_, out_, scale_, m_, k_, v_, mask in in_chunks(
                chunk, q, dq, dout, out, scale, m, k1, v1, mask=mask1
            ):
                x, grad, keys = exact(q_), of_outputs(dout_, out_, scale_), keys_of(k_, v_, mask, features)
                earlier, within = grad @ state.both.mT, _of_scores(grad, keys)
                if keys.shift is not None:
                    earlier.mul_((state.m - m_).exp())
                    within.mul_(_decay(keys.shift, m_))
                phi = features.queries(x)
                dq_.copy_(features.of_queries(x, phi, (within @ keys.phi).add_(earlier)))
                state = added(state, keys)
            # Keys, with R = sum of phi(q_i) grad_i^T exp(-m_i) over the queries to come, times exp(m) here.
            R = torch.zeros_like(state.both)
            chunks = list(in_chunks(chunk, q, dout, out, scale, k1, v1, dk1, dv1, mask=mask1))
            for first, (q_, dout_, out_, scale_, k_, v_, dk_, dv_, mask) in zip(
                reversed(firsts[:-1]), reversed(chunks), strict=True
            ):
                grad, keys = of_outputs(dout_, out_, scale_), keys_of(k_, v_, mask, features)
                phi = features.queries(exact(q_))
                scores, decay, m_ = _within(phi, keys, first)
                within = _of_scores(grad, keys)
                dphi, dy = of_sums(keys, R, m_[:, :, -1:])
                if decay is not None:
                    within.mul_(decay)
                dphi.add_(within.mT @ phi)
                write_keys(dk_, dv_, keys, mask, features, dphi, dy.add_(scores.mT @ grad[..., :-1]))
                if decay is not None:
                    R *= (first - m_[:, :, -1:]).exp()
                    phi = phi * (first - m_).exp()
                R += phi.mT @ grad
            for k_, v_, dk_, dv_, mask in in_chunks(chunk, k0, v0, dk0, dv0, mask=mask0):
                keys = keys_of(k_, v_, mask, features)
                write_keys(dk_, dv_, keys, mask, features, *of_sums(keys, R, firsts[0]))
        return dq, dk, dv, None, None, None
