"""Sums over keys of features and values, in chunks of positions, and gradients through them, for `_kernelized.py`."""

from collections.abc import Iterator
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor

from greenformers.attention._contract import accurate, exact, on_gpu
from greenformers.attention._feature_map import FeatureMap


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


class Keys(NamedTuple):
    """A chunk of keys x, their features phi and shifts, and their values v; padding is 0."""

    x: Tensor
    phi: Tensor
    shift: Tensor | None
    v: Tensor


def keys_of(k: Tensor, v: Tensor, mask: Tensor | None, features: FeatureMap) -> Keys:
    """The `Keys` of a chunk of keys and values (B, H, C, D) and its mask (B, C)."""
    x, v = exact(k), exact(v)
    if mask is None:
        return Keys(x, *features.keys(x), v)
    padding = ~mask[:, None, :, None]
    x, v = x.masked_fill(padding, 0.0), v.masked_fill(padding, 0.0)
    phi, shift = features.keys(x)
    shift = None if shift is None else shift.masked_fill(padding, floor(x))
    return Keys(x, phi.masked_fill(padding, 0.0), shift, v)


def reciprocal(den: Tensor) -> Tensor:
    """1 / den without overflow; 0 where den is 0, without any key."""
    return torch.where(den > 0, den.clamp(min=least(den)), torch.inf).reciprocal()


def least(den: Tensor) -> float:
    """The smallest denominator whose reciprocal does not overflow."""
    return float(torch.finfo(den.dtype).tiny ** 0.75)


def added(state: State, keys: Keys) -> State:
    """The state after another chunk of keys."""
    if keys.shift is None:
        return State(state.S + keys.phi.mT @ keys.v, state.z + keys.phi.sum(2)[..., None], state.m)
    m = torch.maximum(keys.shift.detach().amax(2, keepdim=True), state.m)
    phi, before = keys.phi * (keys.shift - m).exp(), (state.m - m).exp()
    return State(before * state.S + phi.mT @ keys.v, before * state.z + phi.sum(2)[..., None], m)


def of_outputs(dout: Tensor, out: Tensor, scale: Tensor) -> Tensor:
    """Gradients of [numerator, denominator] (B, H, C, D + 1) from those of their ratio."""
    dout, out = exact(dout), exact(out)
    grad = dout.new_empty(*dout.shape[:3], dout.shape[3] + 1)
    product(dout, scale, grad[..., :-1])
    grad[..., -1] = -(grad[..., :-1] * out).sum(-1)
    return grad


def write_keys(dk: Tensor, dv: Tensor, keys: Keys, mask: Tensor | None, features: FeatureMap, *grads: Tensor) -> None:
    """Write the gradients of keys and values, from those of features and values; 0 for padding."""
    dx, dy = features.of_keys(keys.x, keys.phi, grads[0]), grads[1]
    if mask is not None:
        padding = ~mask[:, None, :, None]
        dx, dy = dx.masked_fill(padding, 0.0), dy.masked_fill(padding, 0.0)
    dk.copy_(dx)
    dv.copy_(dy)


def of_sums(keys: Keys, R: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of features and values of keys from R = sum_i phi(q_i) grad_i^T (B, H, F, D + 1), times exp(m)."""
    dphi, dv = (keys.v @ R[..., :-1].mT).add_(R[..., -1:].mT), keys.phi @ R[..., :-1]
    if keys.shift is not None:
        weight = (keys.shift - m).exp()
        dphi, dv = dphi.mul_(weight), dv.mul_(weight)
    return dphi, dv


def empty(like: Tensor, features: FeatureMap) -> State:
    """The state before the first key."""
    batch, heads, _, dim = like.shape
    S = like.new_zeros(batch, heads, features.width, dim, dtype=accurate(like))
    return State(S, S.new_zeros(batch, heads, features.width, 1), S.new_full((batch, heads, 1, 1), floor(S)))


def floor(x: Tensor) -> float:
    """A number below every shift, whose differences are finite."""
    return torch.finfo(x.dtype).min / 4


def product(x: Tensor, y: Tensor, place: Tensor) -> None:
    """Write x y to a tensor that need not be contiguous; the compiler does not take `out` there."""
    if torch.compiler.is_compiling():
        place.copy_(x * y)
    else:
        torch.mul(x, y, out=place)


def in_chunks(size: int, *tensors: Tensor, mask: Tensor | None = None) -> Iterator[tuple[Any, ...]]:
    """Chunks of `size` positions of tensors (B, H, N, ...), followed by that of a mask (B, N), or None."""
    parts = [x.split(size, 2) for x in tensors]
    masks = repeat(None) if mask is None else mask.split(size, 1)
    return ((*chunk, mask_) for *chunk, mask_ in zip(*parts, masks, strict=False)) if tensors[0].shape[2] else iter(())


def before_and_at(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Keys, values and mask before the queries, which are the last N of M positions; and those from there on."""
    past = k.shape[2] - q.shape[2]
    mask0, mask1 = (None, None) if key_mask is None else (key_mask[:, :past], key_mask[:, past:])
    return (k[:, :, :past], v[:, :, :past], mask0), (k[:, :, past:], v[:, :, past:], mask1)


_NUMBERS, _NUMBERS_ON_GPU = 2**18, 2**28
"""Number of feature values that are computed at a time."""


def numbers(x: Tensor) -> int:
    """Numbers that are computed at a time: as many as stay in a CPU's cache, or a part of a GPU's memory."""
    return _NUMBERS_ON_GPU if on_gpu(x) else _NUMBERS
