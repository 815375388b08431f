"""Attention with a feature map in which every query sees every key. See `_kernelized.py`."""

from typing import Any

import torch
from torch import Tensor

from greenformers._gradients import by_hand
from greenformers.attention._contract import exact, full_precision
from greenformers.attention._feature_map import FeatureMap
from greenformers.attention._kernel_sums import (
    added,
    empty,
    in_chunks,
    keys_of,
    of_outputs,
    of_sums,
    product,
    reciprocal,
    write_keys,
)


def plain(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, features: FeatureMap, chunk: int) -> Tensor:
    """The output of `Bidirectional`, in operations that torch differentiates."""
    state = empty(q, features)
    with full_precision(q):
        for k_, v_, mask in in_chunks(chunk, k, v, mask=key_mask):
            state = added(state, keys_of(k_, v_, mask, features))
        sums = features.queries(exact(q)) @ state.both
        return (sums[..., :-1] * reciprocal(sums[..., -1:])).to(q.dtype)


class Bidirectional(torch.autograd.Function):
    """Every query sees every key."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, features: FeatureMap, chunk: int
    ) -> Tensor:
        state, out = empty(q, features), torch.empty_like(q)
        scale = state.S.new_empty(*q.shape[:3], 1)
        with full_precision(q):
            for k_, v_, mask in in_chunks(chunk, k, v, mask=key_mask):
                state = added(state, keys_of(k_, v_, mask, features))
            T = state.both
            for q_, out_, scale_, _ in in_chunks(chunk, q, out, scale):
                sums = features.queries(exact(q_)) @ T
                scale_.copy_(reciprocal(sums[..., -1:]))
                product(sums[..., :-1], scale_, out_)
        ctx.save_for_backward(q, k, v, key_mask, out, scale, T, state.m)
        ctx.features, ctx.chunk = features, chunk
        return out

    @staticmethod
    @by_hand(3, lambda ctx, q, k, v: plain(q, k, v, ctx.saved_tensors[3], ctx.features, ctx.chunk))
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, key_mask, out, scale, T, m = ctx.saved_tensors
        features, chunk = ctx.features, ctx.chunk
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        R = torch.zeros_like(T)
        with full_precision(dout):
            for q_, dq_, dout_, out_, scale_, _ in in_chunks(chunk, q, dq, dout, out, scale):
                x, grad = exact(q_), of_outputs(dout_, out_, scale_)
                phi = features.queries(x)
                dq_.copy_(features.of_queries(x, phi, grad @ T.mT))
                R += phi.mT @ grad
            for k_, v_, dk_, dv_, mask in in_chunks(chunk, k, v, dk, dv, mask=key_mask):
                keys = keys_of(k_, v_, mask, features)
                write_keys(dk_, dv_, keys, mask, features, *of_sums(keys, R, m))
        return dq, dk, dv, None, None, None
