"""Attention with features phi_f(x) = exp(w_f x - c(x)) as two softmax attentions, one through the other.

With S_f = sum_j phi_f(k_j) v_j and z_f = sum_j phi_f(k_j),

    S_f / z_f = softmax_j(w_f k_j - c(k_j)) v,    out_i = softmax_f(w_f q_i + log z_f) (S_f / z_f)

which is sum_f phi_f(q_i) S_f / sum_f phi_f(q_i) z_f of `_kernelized.py`: features read the keys, and queries read the
features. Each is torch's fused attention, which gives log z_f with it: no features of N positions exist, and nothing
overflows. The backward pass computes both weights again, chunk by chunk. Time O(N F D), memory O(N D).
"""

from typing import Any

import torch
from torch import Tensor

from greenformers._gradients import by_hand
from greenformers._torch import operators, softmax_gradient
from greenformers.attention._aligned import zeroed
from greenformers.attention._contract import exact, full_precision
from greenformers.attention._feature_map import Exponential

CHUNK = 128
"""Positions of which the backward pass computes the weights at a time, where no number is given."""


class ThroughFeatures(torch.autograd.Function):
    """Every query sees every key; for features with rows w, on a CPU."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        features: Exponential,
        chunk: int,
        plain: Any,
    ) -> Tensor:
        with full_precision(q):
            x, y, values = (_side_by_side(exact(part)) for part in (q, zeroed(k, key_mask), zeroed(v, key_mask)))
            w = _rows(features).to(x.dtype)
            rows = w.expand(*y.shape[:2], -1, -1)
            shift = _shift(y, features, key_mask).mT.contiguous()  # (B, H, 1, M)
            mean, top = operators.cpu_attention(rows, y, values, 0.0, False, attn_mask=shift, scale=1.0)
            top = top[:, :, None].contiguous()  # log z (B, H, 1, F)
            out, _ = operators.cpu_attention(x, rows, mean, 0.0, False, attn_mask=top, scale=1.0)
            if key_mask is not None and not bool((some := key_mask.any(1)).all()):
                out = out.masked_fill(~some[:, None, None, None], 0.0)
        ctx.save_for_backward(q, k, v, key_mask, w, mean, top)
        ctx.features, ctx.chunk, ctx.plain = features, chunk, plain
        return out.to(q.dtype)

    @staticmethod
    @by_hand(3, lambda ctx, q, k, v: ctx.plain(q, k, v, ctx.saved_tensors[3]))
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, key_mask, w, mean, top = ctx.saved_tensors
        features, chunk = ctx.features, ctx.chunk
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        dmean, dtop = torch.zeros_like(mean), torch.zeros_like(top)
        with full_precision(dout):
            for at in range(0, q.shape[2], chunk):
                here = slice(at, at + chunk)
                g = exact(dout[:, :, here])
                P = (exact(q[:, :, here]) @ w.mT).add_(top).softmax(-1)  # (B, H, C, F)
                dmean += P.mT @ g
                scores = softmax_gradient(g @ mean.mT, P)
                dtop += scores.sum(2, keepdim=True)
                dq[:, :, here] = scores @ w
            # With P = softmax_j of a feature's scores, their gradient is P (dmean v - dmean mean + dtop).
            rest = dtop - (dmean * mean).sum(-1)[:, :, None]
            for at in range(0, k.shape[2], chunk):
                here = slice(at, at + chunk)
                mask = None if key_mask is None else key_mask[:, here]
                x, y = (exact(zeroed(part[:, :, here], mask)) for part in (k, v))
                P = (x @ w.mT).add_(_shift(x, features, mask)).sub_(top).exp_()
                scores = (y @ dmean.mT).add_(rest).mul_(P)
                dx = (scores @ w).addcmul_(scores.sum(-1, keepdim=True), x, value=-features.square)
                dy = P @ dmean
                if mask is not None:
                    padding = ~mask[:, None, :, None]
                    dx, dy = dx.masked_fill(padding, 0.0), dy.masked_fill(padding, 0.0)
                dk[:, :, here], dv[:, :, here] = dx, dy
        return dq, dk, dv, None, None, None, None


def _side_by_side(x: Tensor) -> Tensor:
    """The tensor with the numbers of a row next to each other in memory, which the kernel takes for granted."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _rows(features: Exponential) -> Tensor:
    assert features.rows is not None
    return features.rows


def _shift(x: Tensor, features: Exponential, mask: Tensor | None) -> Tensor:
    """-c(x) = -|scale x|^2 / 2 of keys (B, H, C, 1); at padding a number below which no score is."""
    shift = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().mul_(-features.square / 2)
    return shift if mask is None else shift.masked_fill(~mask[:, None, :, None], torch.finfo(x.dtype).min / 4)
