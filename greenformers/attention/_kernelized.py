"""Engine of out_i = phi(q_i) (sum_j phi(k_j) v_j^T) / (phi(q_i) sum_j phi(k_j)).

Katharopoulos 2020, arXiv:2006.16236, eq. 5, 8-10, 18-20.

Time O(N F D) for F features, bidirectional and causal; a state of F (D + 1) numbers is all that decoding keeps.
Positions are taken in chunks. What the backward pass needs of a chunk it computes again, so that features and
running sums of N positions never exist at once: memory O(N D), as of q, k and v, forward and backward.

Features may come with a factor exp(shift_j) for each key. Only its ratio to exp(m_i) enters, where m_i is the largest
shift a query may see: as in softmax it cancels, nothing overflows, and no query depends on keys it does not see.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from greenformers.attention._contract import Attention, Shape, check_lengths, full_precision


class FeatureMap(Protocol):
    """phi, with derivatives. Each method takes a chunk (B, H, C, D) and gives features (B, H, C, F)."""

    width: int
    """F."""

    def queries(self, x: Tensor) -> Tensor:
        """phi(x), but for a factor of each position, which cancels."""

    def keys(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """phi(x) without a factor exp(shift), and the shift (B, H, C, 1), None where there is none."""

    def of_queries(self, x: Tensor, phi: Tensor, grad: Tensor) -> Tensor:
        """The gradient of queries from that of their features."""

    def of_keys(self, x: Tensor, phi: Tensor, grad: Tensor) -> Tensor:
        """The gradient of keys from that of their features, times exp(shift)."""


class Exponential:
    """phi(x) = exp(w y - |y|^2 / 2) for the rows w of a matrix and y = scale x, or exp(x) without rows.

    Args:
        width: F.
        rows: w (F, D); None: F = D features exp(x).
        scale: of x.
    """

    def __init__(self, width: int, rows: Tensor | None = None, scale: float = 1.0) -> None:
        self.width, self.square = width, scale**2
        self.rows = None if rows is None else scale * rows

    def _logarithm(self, x: Tensor) -> Tensor:
        return x if self.rows is None else x @ self.rows.mT

    def queries(self, x: Tensor) -> Tensor:
        return self._logarithm(x).softmax(-1)

    def keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = self._logarithm(x)
        largest = a.detach().amax(-1, keepdim=True)
        if self.rows is None:
            return (a - largest).exp_(), largest
        shift = largest - self.square / 2 * x.square().sum(-1, keepdim=True)
        return (a - largest if torch.is_grad_enabled() else a.sub_(largest)).exp_(), shift

    def of_queries(self, x: Tensor, phi: Tensor, grad: Tensor) -> Tensor:
        grad = grad.mul_(phi)
        return grad if self.rows is None else grad @ self.rows

    def of_keys(self, x: Tensor, phi: Tensor, grad: Tensor) -> Tensor:
        grad = grad.mul_(phi)
        return grad if self.rows is None else grad @ self.rows - self.square * grad.sum(-1, keepdim=True) * x


class State(NamedTuple):
    """Sums over the keys so far, times exp(-m): T = sum phi(k_j) [v_j, 1]^T (B, H, F, D + 1).

    m (B, H, 1, 1) is the largest shift so far.
    """

    T: Tensor
    m: Tensor


class Kernelized(Attention):
    """Base of the mechanisms that are a feature map: they give `phi`, the engine does the rest.

    Args:
        shape: heads, width and length.
        chunk: positions taken at a time.
    """

    def __init__(self, shape: Shape, *, chunk: int) -> None:
        super().__init__(shape)
        if chunk < 1:
            raise ValueError(f"chunk must be at least 1, got {chunk}")
        self.chunk = chunk

    @property
    def phi(self) -> FeatureMap:
        """The feature map."""
        raise NotImplementedError

    @property
    def can_step(self) -> bool:
        """True in the causal form."""
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
        check_lengths(q, k, v, key_mask, self.shape)
        function = _Causal if self.shape.causal else _Bidirectional
        out: Tensor = function.apply(q, k, v, key_mask, self.phi, self.chunk)
        return out

    def step(
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H N D"],
        v: Float[Tensor, "B H N D"],
        state: tuple[Tensor, ...] | None,
        key_mask: Bool[Tensor, "B N"] | None = None,
    ) -> tuple[Float[Tensor, "B H N D"], State]:
        features, outs = self.phi, []
        with full_precision(q):
            state = _empty(q, features) if state is None else State(*state)
            for at in _chunks(q.shape[2], self.chunk):
                keys = _keys(k, v, key_mask, at, features)
                out, _, _, state = _forward(_rows(q, at), keys, features, state)
                outs.append(out)
        return torch.cat(outs, 2).to(q.dtype), state


class _Keys(NamedTuple):
    """A chunk of keys: as they came, their features and shifts, and their values; padding is 0."""

    x: Tensor
    phi: Tensor
    shift: Tensor | None
    v: Tensor


def _keys(k: Tensor, v: Tensor, key_mask: Tensor | None, at: slice, features: FeatureMap) -> _Keys:
    x, v = _rows(k, at), _rows(v, at)
    if key_mask is None:
        return _Keys(x, *features.keys(x), v)
    padding = ~key_mask[:, None, at, None]
    x, v = x.masked_fill(padding, 0.0), v.masked_fill(padding, 0.0)
    phi, shift = features.keys(x)
    shift = None if shift is None else shift.masked_fill(padding, _floor(x))
    return _Keys(x, phi.masked_fill(padding, 0.0), shift, v)


def _within(phi: Tensor, keys: _Keys, before: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    """Of a chunk: its scores (B, H, C, C), the factors exp(shift_j - m_i) in them, and m (B, H, C or 1, 1)."""
    scores = (phi @ keys.phi.mT).tril()
    if keys.shift is None:
        return scores, None, before
    m = torch.maximum(keys.shift.detach().cummax(2).values, before)
    # At most 1 also for the keys after i, which do not count.
    decay = (keys.shift.mT - m).clamp(max=0).exp()
    return scores * decay, decay, m


def _forward(q: Tensor, keys: _Keys, features: FeatureMap, state: State) -> tuple[Tensor, Tensor, Tensor, State]:
    """Causal attention of a chunk on top of a state: outputs, their denominators, m, and the state after it."""
    phi = features.queries(q)
    scores, _, m = _within(phi, keys, state.m)
    sums = phi @ state.T if keys.shift is None else (state.m - m).exp() * (phi @ state.T)
    den = _divisor(sums[..., -1:] + scores.sum(-1, keepdim=True))
    return (sums[..., :-1] + scores @ keys.v) / den, den, m, _added(state, keys)


def _divisor(den: Tensor) -> Tensor:
    """A denominator, but so large that 1 / den does not overflow; without a key the numerator is 0."""
    return den.clamp(min=torch.finfo(den.dtype).tiny ** 0.75)


def _added(state: State, keys: _Keys) -> State:
    """The state with a chunk of keys more."""
    if keys.shift is None:
        return State(state.T + _sums(keys.phi, keys.v), state.m)
    m = torch.maximum(keys.shift.detach().amax(2, keepdim=True), state.m)
    return State((state.m - m).exp() * state.T + _sums(keys.phi * (keys.shift - m).exp(), keys.v), m)


def _sums(phi: Tensor, v: Tensor) -> Tensor:
    """sum_j phi_j [v_j, 1]^T."""
    return torch.cat([phi.mT @ v, phi.sum(2)[..., None]], 3)


class _Gradients:
    """What both backward passes do alike: dout over the denominator, and gradients written chunk by chunk."""

    def __init__(self, saved: tuple[Tensor, ...], features: FeatureMap, dout: Tensor) -> None:
        self.q, self.k, self.v, self.key_mask, self.out, self.den = saved
        self.features, self.dout = features, dout
        self.dq, self.dk, self.dv = (torch.empty_like(x) for x in (self.q, self.k, self.v))

    def queries(self, at: slice) -> tuple[Tensor, Tensor, Tensor]:
        """q, phi(q), and the gradients of [numerator, denominator] (B, H, C, D + 1)."""
        q, dout, out = (_rows(x, at) for x in (self.q, self.dout, self.out))
        grad = q.new_empty(*q.shape[:3], q.shape[3] + 1)
        torch.div(dout, self.den[:, :, at], out=grad[..., :-1])
        grad[..., -1] = -(grad[..., :-1] * out).sum(-1)
        return q, self.features.queries(q), grad

    def keys(self, at: slice) -> _Keys:
        return _keys(self.k, self.v, self.key_mask, at, self.features)

    def write(self, at: slice, keys: _Keys, dphi: Tensor, dv: Tensor) -> None:
        """Gradients of keys and values; 0 for padding."""
        dk = self.features.of_keys(keys.x, keys.phi, dphi)
        if self.key_mask is not None:
            padding = ~self.key_mask[:, None, at, None]
            dk, dv = dk.masked_fill(padding, 0.0), dv.masked_fill(padding, 0.0)
        self.dk[:, :, at], self.dv[:, :, at] = dk, dv


def _of_sums(keys: _Keys, R: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of features and values of keys from R = sum_i phi(q_i) grad_i^T (B, H, F, D + 1)."""
    return (keys.v @ R[..., :-1].mT).add_(R[..., -1:].mT), keys.phi @ R[..., :-1]


def _of_scores(grad: Tensor, keys: _Keys) -> Tensor:
    """Gradients of the scores of a chunk (B, H, C, C), 0 where the key comes after the query."""
    return (grad[..., :-1] @ keys.v.mT).add_(grad[..., -1:]).tril_()


class _Bidirectional(torch.autograd.Function):
    """Every query sees every key."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, features: FeatureMap, chunk: int
    ) -> Tensor:
        state, out = _empty(q, features), torch.empty_like(q)
        den = state.T.new_empty(*q.shape[:3], 1)
        with full_precision(q):
            for at in _chunks(k.shape[2], chunk):
                state = _added(state, _keys(k, v, key_mask, at, features))
            for at in _chunks(q.shape[2], chunk):
                phi = features.queries(_rows(q, at))
                sums = phi @ state.T
                den[:, :, at] = _divisor(sums[..., -1:])
                torch.div(sums[..., :-1], den[:, :, at], out=out[:, :, at])
        ctx.save_for_backward(q, k, v, key_mask, out, den, *state)
        ctx.features, ctx.chunk = features, chunk
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        *saved, T, m = ctx.saved_tensors
        grads, R = _Gradients(saved, ctx.features, dout), torch.zeros_like(T)
        with full_precision(dout):
            for at in _chunks(dout.shape[2], ctx.chunk):
                q, phi, grad = grads.queries(at)
                grads.dq[:, :, at] = ctx.features.of_queries(q, phi, grad @ T.mT)
                R += phi.mT @ grad
            for at in _chunks(grads.k.shape[2], ctx.chunk):
                keys = grads.keys(at)
                dphi, dv = _of_sums(keys, R)
                if keys.shift is not None:
                    weight = (keys.shift - m).exp()
                    dphi, dv = dphi.mul_(weight), dv.mul_(weight)
                grads.write(at, keys, dphi, dv)
        return grads.dq, grads.dk, grads.dv, None, None, None


class _Causal(torch.autograd.Function):
    """Query i, of the last N of M positions, sees the keys up to its own position."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, features: FeatureMap, chunk: int
    ) -> Tensor:
        state, out = _empty(q, features), torch.empty_like(q)
        den, m = (state.T.new_empty(*q.shape[:3], 1) for _ in range(2))
        past = k.shape[2] - q.shape[2]
        with full_precision(q):
            for at in _chunks(past, chunk):
                state = _added(state, _keys(k, v, key_mask, at, features))
            before = state
            for at, here in _pairs(q.shape[2], past, chunk):
                keys = _keys(k, v, key_mask, here, features)
                out[:, :, at], den[:, :, at], m[:, :, at], state = _forward(_rows(q, at), keys, features, state)
        ctx.save_for_backward(q, k, v, key_mask, out, den, m, *before)
        ctx.features, ctx.chunk = features, chunk
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        *saved, ms, T, first = ctx.saved_tensors
        grads, state = _Gradients(saved, ctx.features, dout), State(T, first)
        past = grads.k.shape[2] - dout.shape[2]
        pairs = list(_pairs(dout.shape[2], past, ctx.chunk))
        with full_precision(dout):
            for at, here in pairs:  # queries, with what came before them
                q, phi, grad = grads.queries(at)
                keys = grads.keys(here)
                before, within = grad @ state.T.mT, _of_scores(grad, keys)
                if keys.shift is not None:
                    m = ms[:, :, at]
                    before.mul_((state.m - m).exp())
                    within.mul_((keys.shift.mT - m).clamp_(max=0).exp_())
                grads.dq[:, :, at] = ctx.features.of_queries(q, phi, (within @ keys.phi).add_(before))
                state = _added(state, keys)
            R = torch.zeros_like(state.T)  # of the queries to come, times exp(m)
            for at, here in reversed(pairs):
                _, phi, grad = grads.queries(at)
                keys = grads.keys(here)
                scores, decay, m = _within(phi, keys, first if at.start == 0 else ms[:, :, at.start - 1 : at.start])
                within = _of_scores(grad, keys)
                dphi, dv = _of_sums(keys, R)
                if decay is not None and keys.shift is not None:
                    within, weight = within.mul_(decay), (keys.shift - m[:, :, -1:]).exp()
                    dphi, dv = dphi.mul_(weight), dv.mul_(weight)
                grads.write(here, keys, dphi.add_(within.mT @ phi), dv.add_(scores.mT @ grad[..., :-1]))
                if decay is not None:
                    earlier = first if at.start == 0 else ms[:, :, at.start - 1 : at.start]
                    fade, phi = (earlier - m[:, :, -1:]).exp(), phi * (earlier - m).exp()
                    R *= fade
                R += phi.mT @ grad
            for at in _chunks(past, ctx.chunk):
                keys = grads.keys(at)
                dphi, dv = _of_sums(keys, R)
                if keys.shift is not None:
                    weight = (keys.shift - first).exp()
                    dphi, dv = dphi.mul_(weight), dv.mul_(weight)
                grads.write(at, keys, dphi, dv)
        return grads.dq, grads.dk, grads.dv, None, None, None


def _empty(like: Tensor, features: FeatureMap) -> State:
    """The state before the first key."""
    batch, heads, _, dim = like.shape
    T = like.new_zeros(batch, heads, features.width, dim + 1, dtype=accurate(like))
    return State(T, T.new_full((batch, heads, 1, 1), _floor(T)))


def _floor(x: Tensor) -> float:
    """Below every shift, and differences of two of it are finite."""
    return torch.finfo(x.dtype).min / 4


def accurate(x: Tensor) -> torch.dtype:
    """The type of features and sums for inputs of the type of `x`: at least float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _rows(x: Tensor, at: slice) -> Tensor:
    return x[:, :, at].to(accurate(x))


def _chunks(length: int, size: int) -> Iterator[slice]:
    return (slice(at, min(at + size, length)) for at in range(0, length, size))


def _pairs(length: int, past: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Chunks of the queries, and of the keys at the same positions."""
    return ((at, slice(past + at.start, past + at.stop)) for at in _chunks(length, size))
