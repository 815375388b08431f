"""Engine of out_i = phi(q_i) (sum_j phi(k_j) v_j^T) / (phi(q_i) sum_j phi(k_j)).

Katharopoulos 2020, arXiv:2006.16236, eq. 5, 8-10, 18-20.

Time O(N F D) for F features, bidirectional and causal; decoding keeps a state of F (D + 1) numbers.
Positions are taken in chunks. The backward pass computes the features of a chunk again, so that features and
running sums of N positions never exist at once: memory O(N D), as of q, k and v, forward and backward.
On a GPU all chunks are computed side by side, in operations that torch differentiates: memory O(N F).

Features may come with a factor exp(shift_j) for each key. Only its ratio to exp(m_i) enters, where m_i is the largest
shift a query may see: as in softmax it cancels, nothing overflows, and no query depends on keys it does not see.
"""

from collections.abc import Iterator
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from greenformers._gradients import by_hand
from greenformers._torch import in_transform
from greenformers.attention._aligned import finite_queries, is_traced, zeroed
from greenformers.attention._contract import Attention, Shape, accurate, check_fit, exact, full_precision, on_gpu
from greenformers.attention._feature_map import Exponential, FeatureMap
from greenformers.attention._through_features import CHUNK, ThroughFeatures


class State(NamedTuple):
    """Sums over the keys so far, times exp(-m): S = sum phi(k_j) v_j^T (B, H, F, D), z = sum phi(k_j) (B, H, F, 1).

    m (B, H, 1, 1) is the largest shift so far.
    """

    S: Tensor
    z: Tensor
    m: Tensor

    @property
    def both(self) -> Tensor:
        """T = [S, z] (B, H, F, D + 1): numerators and denominators by one product."""
        return torch.cat([self.S, self.z], 3)


class Kernelized(Attention):
    """Base of the mechanisms with a feature map: they define `phi`, and attention is computed here.

    Args:
        shape: Heads, width and length.
        chunk: Number of positions taken at a time. By default 128 where causal, whose cost within a chunk is quadratic;
            otherwise as many as make 2^18 numbers of features and values.

    Raises:
        ValueError: `chunk` is below 1.
    """

    queries_apart = True

    def __init__(self, shape: Shape, *, chunk: int | None) -> None:
        super().__init__(shape)
        if chunk is not None and chunk < 1:
            raise ValueError(f"chunk must be at least 1, got {chunk}")
        self.chunk = chunk

    @property
    def phi(self) -> FeatureMap:
        """The feature map phi."""
        raise NotImplementedError

    @property
    def can_step(self) -> bool:
        """Whether the attention is causal."""
        return self.shape.causal

    def forward(
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B H N D"]:
        check_fit(q, k, v, key_mask, self.shape, query_mask)
        q = finite_queries(q, key_mask, query_mask, cross=self.shape.cross)
        function = _Causal if self.shape.causal else _Bidirectional
        phi = self.phi
        given = q, k, v, key_mask, phi, self._positions(q, phi)
        if in_transform() or on_gpu(q):
            return (_plain_causal if self.shape.causal else _plain)(*given)
        if isinstance(phi, Exponential) and phi.rows is not None and _fits_fused(q, k) and not self.shape.causal:
            plain = partial(_plain, features=phi, chunk=given[-1])
            fused: Tensor = ThroughFeatures.apply(q, k, v, key_mask, phi, self.chunk or CHUNK, plain)
            return fused
        out: Tensor = function.apply(*given)
        return out

    def _positions(self, q: Tensor, phi: FeatureMap) -> int:
        """Number of positions of a chunk: few enough for a cache, enough that work outweighs the cost of calls."""
        if self.chunk is not None:
            return self.chunk
        if self.shape.causal:
            return 128
        batch, heads, count, dim = q.shape
        most = max(64, _numbers(q) // (batch * heads * (phi.width + dim)))
        return -(-count // -(-count // most)) if count else most  # a last chunk of a few costs as many calls

    def step(
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H N D"],
        v: Float[Tensor, "B H N D"],
        state: tuple[Tensor, ...] | None,
        key_mask: Bool[Tensor, "B N"] | None = None,
    ) -> tuple[Float[Tensor, "B H N D"], State]:
        mask = None if key_mask is None else key_mask[:, key_mask.shape[1] - q.shape[2] :]
        q, features = zeroed(q, mask), self.phi
        with full_precision(q):
            before = _empty(k, features) if state is None else State(*state)
            return _stepped(q, k, v, key_mask, features, self._positions(q, features), before)


def _fits_fused(q: Tensor, k: Tensor) -> bool:
    """Whether torch's fused attention takes these: there are queries and keys, and nothing is traced."""
    return bool(q.shape[2] and k.shape[2]) and not is_traced(q)


class _Keys(NamedTuple):
    """A chunk of keys x, their features phi and shifts, and their values v; padding is 0."""

    x: Tensor
    phi: Tensor
    shift: Tensor | None
    v: Tensor


def _keys(k: Tensor, v: Tensor, mask: Tensor | None, features: FeatureMap) -> _Keys:
    """The `_Keys` of a chunk of keys and values (B, H, C, D) and its mask (B, C)."""
    x, v = exact(k), exact(v)
    if mask is None:
        return _Keys(x, *features.keys(x), v)
    padding = ~mask[:, None, :, None]
    x, v = x.masked_fill(padding, 0.0), v.masked_fill(padding, 0.0)
    phi, shift = features.keys(x)
    shift = None if shift is None else shift.masked_fill(padding, _floor(x))
    return _Keys(x, phi.masked_fill(padding, 0.0), shift, v)


def _within(phi: Tensor, keys: _Keys, before: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
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
    q: Tensor, keys: _Keys, features: FeatureMap, state: State, chunk: int
) -> tuple[Tensor, Tensor, Tensor, State]:
    """Causal attention of a chunk on top of a state: outputs, 1 / their denominators, m, and the state after it."""
    if (keys.shift is None or on_gpu(q)) and q.shape[2] > (side := min(chunk, _SIDE)):
        return _side_by_side(q, keys, features, state, side)
    phi = features.queries(q)
    scores, _, m = _within(phi, keys, state.m)
    sums = phi @ state.both if keys.shift is None else (state.m - m).exp() * (phi @ state.both)
    scale = _reciprocal(sums[..., -1:] + scores.sum(-1, keepdim=True))
    return (sums[..., :-1] + scores @ keys.v) * scale, scale, m, _added(state, keys)


_SIDE, _NUMBERS, _NUMBERS_ON_GPU = 64, 2**18, 2**28
"""Positions of a chunk where several are computed side by side, and the number of feature values of all of these."""


def _numbers(x: Tensor) -> int:
    """Numbers that are computed at a time: as many as stay in a CPU's cache, or a part of a GPU's memory."""
    return _NUMBERS_ON_GPU if on_gpu(x) else _NUMBERS


def _together(q: Tensor, features: FeatureMap, chunk: int) -> int:
    """Number of positions taken at a time: a chunk, or, side by side, as many chunks as `_numbers` allows."""
    some = _numbers(q) // (q.shape[0] * q.shape[1] * features.width)
    return chunk if features.has_shifts and not on_gpu(q) else max(chunk, some // chunk * chunk)


def _side_by_side(
    q: Tensor, keys: _Keys, features: FeatureMap, state: State, side: int
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
        shift = chunks(keys.shift, _floor(q))
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
    scale = _reciprocal(sums[..., -1:])
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


def _single(q: Tensor, keys: _Keys, features: FeatureMap, state: State) -> tuple[Tensor, State]:
    """`_forward` for a single position, whose output comes from the state after it."""
    phi, S, z, m = features.queries(q), state.S, state.z, state.m
    of_key = keys.phi.mT  # (B, H, F, 1)
    if keys.shift is not None:
        m = torch.maximum(keys.shift.detach(), state.m)
        of_key, before = of_key * (keys.shift - m).exp(), (state.m - m).exp()
        S, z = before * S, before * z
    after = State(torch.addcmul(S, of_key, keys.v), z + of_key, m)
    return (phi @ after.S) / (phi @ after.z).clamp(min=_least(S)), after


def _reciprocal(den: Tensor) -> Tensor:
    """1 / den without overflow; 0 where den is 0, without any key."""
    return torch.where(den > 0, den.clamp(min=_least(den)), torch.inf).reciprocal()


def _least(den: Tensor) -> float:
    """The smallest denominator whose reciprocal does not overflow."""
    return float(torch.finfo(den.dtype).tiny ** 0.75)


def _added(state: State, keys: _Keys) -> State:
    """The state after another chunk of keys."""
    if keys.shift is None:
        return State(state.S + keys.phi.mT @ keys.v, state.z + keys.phi.sum(2)[..., None], state.m)
    m = torch.maximum(keys.shift.detach().amax(2, keepdim=True), state.m)
    phi, before = keys.phi * (keys.shift - m).exp(), (state.m - m).exp()
    return State(before * state.S + phi.mT @ keys.v, before * state.z + phi.sum(2)[..., None], m)


def _of_outputs(dout: Tensor, out: Tensor, scale: Tensor) -> Tensor:
    """Gradients of [numerator, denominator] (B, H, C, D + 1) from those of their ratio."""
    dout, out = exact(dout), exact(out)
    grad = dout.new_empty(*dout.shape[:3], dout.shape[3] + 1)
    _product(dout, scale, grad[..., :-1])
    grad[..., -1] = -(grad[..., :-1] * out).sum(-1)
    return grad


def _write(dk: Tensor, dv: Tensor, keys: _Keys, mask: Tensor | None, features: FeatureMap, *grads: Tensor) -> None:
    """Write the gradients of keys and values, from those of features and values; 0 for padding."""
    dx, dy = features.of_keys(keys.x, keys.phi, grads[0]), grads[1]
    if mask is not None:
        padding = ~mask[:, None, :, None]
        dx, dy = dx.masked_fill(padding, 0.0), dy.masked_fill(padding, 0.0)
    dk.copy_(dx)
    dv.copy_(dy)


def _of_sums(keys: _Keys, R: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of features and values of keys from R = sum_i phi(q_i) grad_i^T (B, H, F, D + 1), times exp(m)."""
    dphi, dv = (keys.v @ R[..., :-1].mT).add_(R[..., -1:].mT), keys.phi @ R[..., :-1]
    if keys.shift is not None:
        weight = (keys.shift - m).exp()
        dphi, dv = dphi.mul_(weight), dv.mul_(weight)
    return dphi, dv


def _of_scores(grad: Tensor, keys: _Keys) -> Tensor:
    """Gradients of the scores of a chunk (B, H, C, C), 0 where the key comes after the query."""
    return (grad[..., :-1] @ keys.v.mT).add_(grad[..., -1:]).tril_()


def _stepped(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, features: FeatureMap, chunk: int, state: State
) -> tuple[Tensor, State]:
    """Causal attention on top of a state, and the state after it, in operations that torch differentiates."""
    if k.shape[2] > q.shape[2]:
        (k0, v0, mask0), (k, v, key_mask) = _split(q, k, v, key_mask)
        for k_, v_, mask in _chunks(chunk, k0, v0, mask=mask0):
            state = _added(state, _keys(k_, v_, mask, features))
    if q.shape[2] == 1:
        out, state = _single(exact(q), _keys(k, v, key_mask, features), features, state)
        return out.to(q.dtype), state
    outs = [q[:, :, :0]]
    for q_, k_, v_, mask in _chunks(_together(q, features, chunk), q, k, v, mask=key_mask):
        out, _, _, state = _forward(exact(q_), _keys(k_, v_, mask, features), features, state, chunk)
        outs.append(out.to(q.dtype))
    return torch.cat(outs, 2), state


def _plain_causal(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, features: FeatureMap, chunk: int) -> Tensor:
    """The output of `_Causal`, in operations that torch differentiates."""
    with full_precision(q):
        return _stepped(q, k, v, key_mask, features, chunk, _empty(q, features))[0]


def _plain(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, features: FeatureMap, chunk: int) -> Tensor:
    """The output of `_Bidirectional`, in operations that torch differentiates."""
    state = _empty(q, features)
    with full_precision(q):
        for k_, v_, mask in _chunks(chunk, k, v, mask=key_mask):
            state = _added(state, _keys(k_, v_, mask, features))
        sums = features.queries(exact(q)) @ state.both
        return (sums[..., :-1] * _reciprocal(sums[..., -1:])).to(q.dtype)


class _Bidirectional(torch.autograd.Function):
    """Every query sees every key."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, features: FeatureMap, chunk: int
    ) -> Tensor:
        state, out = _empty(q, features), torch.empty_like(q)
        scale = state.S.new_empty(*q.shape[:3], 1)
        with full_precision(q):
            for k_, v_, mask in _chunks(chunk, k, v, mask=key_mask):
                state = _added(state, _keys(k_, v_, mask, features))
            T = state.both
            for q_, out_, scale_, _ in _chunks(chunk, q, out, scale):
                sums = features.queries(exact(q_)) @ T
                scale_.copy_(_reciprocal(sums[..., -1:]))
                _product(sums[..., :-1], scale_, out_)
        ctx.save_for_backward(q, k, v, key_mask, out, scale, T, state.m)
        ctx.features, ctx.chunk = features, chunk
        return out

    @staticmethod
    @by_hand(3, lambda ctx, q, k, v: _plain(q, k, v, ctx.saved_tensors[3], ctx.features, ctx.chunk))
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, key_mask, out, scale, T, m = ctx.saved_tensors
        features, chunk = ctx.features, ctx.chunk
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        R = torch.zeros_like(T)
        with full_precision(dout):
            for q_, dq_, dout_, out_, scale_, _ in _chunks(chunk, q, dq, dout, out, scale):
                x, grad = exact(q_), _of_outputs(dout_, out_, scale_)
                phi = features.queries(x)
                dq_.copy_(features.of_queries(x, phi, grad @ T.mT))
                R += phi.mT @ grad
            for k_, v_, dk_, dv_, mask in _chunks(chunk, k, v, dk, dv, mask=key_mask):
                keys = _keys(k_, v_, mask, features)
                _write(dk_, dv_, keys, mask, features, *_of_sums(keys, R, m))
        return dq, dk, dv, None, None, None


class _Causal(torch.autograd.Function):
    """Query i, of the last N of M positions, sees the keys up to its own position."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, features: FeatureMap, chunk: int
    ) -> Tensor:
        state, out = _empty(q, features), torch.empty_like(q)
        scale, m = (state.S.new_empty(*q.shape[:3], 1) for _ in range(2))
        earlier, present = _split(q, k, v, key_mask)
        with full_precision(q):
            for k_, v_, mask in _chunks(chunk, *earlier[:2], mask=earlier[2]):
                state = _added(state, _keys(k_, v_, mask, features))
            before = state
            places, size = (out, scale, m), _together(q, features, chunk)
            for q_, k_, v_, *places_, mask in _chunks(size, q, *present[:2], *places, mask=present[2]):
                keys = _keys(k_, v_, mask, features)
                mixed, *rest, state = _forward(exact(q_), keys, features, state, chunk)
                for place, value in zip(places_, (mixed, *rest), strict=True):
                    place.copy_(value)
        ctx.save_for_backward(q, k, v, key_mask, out, scale, m, *before)
        ctx.features, ctx.chunk = features, chunk
        return out

    @staticmethod
    @by_hand(3, lambda ctx, q, k, v: _plain_causal(q, k, v, ctx.saved_tensors[3], ctx.features, ctx.chunk))
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, key_mask, out, scale, m, *before = ctx.saved_tensors
        features, chunk, state = ctx.features, ctx.chunk, State(*before)
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        (k0, v0, mask0), (k1, v1, mask1) = _split(q, k, v, key_mask)
        (dk0, dv0, _), (dk1, dv1, _) = _split(q, dk, dv, None)
        # The largest shift before each chunk.
        firsts = [state.m, *(m_[:, :, -1:] for m_ in m.split(chunk, 2))]
        with full_precision(dout):
            # Gradients of queries, from the state before each chunk.
            for q_, dq_, dout_, out_, scale_, m_, k_, v_, mask in _chunks(
                chunk, q, dq, dout, out, scale, m, k1, v1, mask=mask1
            ):
                x, grad, keys = exact(q_), _of_outputs(dout_, out_, scale_), _keys(k_, v_, mask, features)
                earlier, within = grad @ state.both.mT, _of_scores(grad, keys)
                if keys.shift is not None:
                    earlier.mul_((state.m - m_).exp())
                    within.mul_(_decay(keys.shift, m_))
                phi = features.queries(x)
                dq_.copy_(features.of_queries(x, phi, (within @ keys.phi).add_(earlier)))
                state = _added(state, keys)
            # Keys, with R = sum of phi(q_i) grad_i^T exp(-m_i) over the queries to come, times exp(m) here.
            R = torch.zeros_like(state.both)
            chunks = list(_chunks(chunk, q, dout, out, scale, k1, v1, dk1, dv1, mask=mask1))
            for first, (q_, dout_, out_, scale_, k_, v_, dk_, dv_, mask) in zip(
                reversed(firsts[:-1]), reversed(chunks), strict=True
            ):
                grad, keys = _of_outputs(dout_, out_, scale_), _keys(k_, v_, mask, features)
                phi = features.queries(exact(q_))
                scores, decay, m_ = _within(phi, keys, first)
                within = _of_scores(grad, keys)
                dphi, dy = _of_sums(keys, R, m_[:, :, -1:])
                if decay is not None:
                    within.mul_(decay)
                dphi.add_(within.mT @ phi)
                _write(dk_, dv_, keys, mask, features, dphi, dy.add_(scores.mT @ grad[..., :-1]))
                if decay is not None:
                    R *= (first - m_[:, :, -1:]).exp()
                    phi = phi * (first - m_).exp()
                R += phi.mT @ grad
            for k_, v_, dk_, dv_, mask in _chunks(chunk, k0, v0, dk0, dv0, mask=mask0):
                keys = _keys(k_, v_, mask, features)
                _write(dk_, dv_, keys, mask, features, *_of_sums(keys, R, firsts[0]))
        return dq, dk, dv, None, None, None


def _empty(like: Tensor, features: FeatureMap) -> State:
    """The state before the first key."""
    batch, heads, _, dim = like.shape
    S = like.new_zeros(batch, heads, features.width, dim, dtype=accurate(like))
    return State(S, S.new_zeros(batch, heads, features.width, 1), S.new_full((batch, heads, 1, 1), _floor(S)))


def _floor(x: Tensor) -> float:
    """A number below every shift, whose differences are finite."""
    return torch.finfo(x.dtype).min / 4


def _product(x: Tensor, y: Tensor, place: Tensor) -> None:
    """Write x y to a tensor that need not be contiguous; the compiler does not take `out` there."""
    if torch.compiler.is_compiling():
        place.copy_(x * y)
    else:
        torch.mul(x, y, out=place)


def _chunks(size: int, *tensors: Tensor, mask: Tensor | None = None) -> Iterator[tuple[Any, ...]]:
    """Chunks of `size` positions of tensors (B, H, N, ...), followed by that of a mask (B, N), or None."""
    parts = [x.split(size, 2) for x in tensors]
    masks = repeat(None) if mask is None else mask.split(size, 1)
    return ((*chunk, mask_) for *chunk, mask_ in zip(*parts, masks, strict=False)) if tensors[0].shape[2] else iter(())


def _split(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Keys, values and mask before the queries, which are the last N of M positions; and those from there on."""
    past = k.shape[2] - q.shape[2]
    mask0, mask1 = (None, None) if key_mask is None else (key_mask[:, :past], key_mask[:, past:])
    return (k[:, :, :past], v[:, :, :past], mask0), (k[:, :, past:], v[:, :, past:], mask1)
