"""LRFF, the low-rank feed-forward block's inner part. Thesis 3.1.1: act(x E1 D1) E2 D2.

Its cost is not arithmetic: the activation (tokens x f) is the largest tensor of the layer, and with low-rank
factors, writing it to memory and reading it back takes longer than computing it. So it is only ever made for a
slice of tokens that stays in the cache, and the backward pass makes it again from the rank-r code, for
r f multiply-adds a token. Kept for the backward pass: r numbers a token instead of 2 f.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from greenformers.lowrank.linear import LED

Activation = Callable[[Tensor], Tensor]

WIDE = 256 * 3072
"""Numbers of a wide activation made at once: 3 MiB in float32, which the last-level cache of two cores holds."""


def slice_length(width: int) -> int:
    """Tokens whose activations of this width stay in the cache."""
    return max(1, WIDE // width)


def low_rank_feed_forward(x: Tensor, up: LED, down: LED, activation: Activation) -> Tensor:
    """down(activation(up(x))) with the inner activation made in slices, in both passes.

    Args:
        x: (..., d).
        up: LED d -> f.
        down: LED f -> d.
        activation: elementwise.

    Returns:
        (..., d), the same numbers as the plain form.
    """
    code = F.linear(x, up.encoder)
    inner: Tensor = _SlicedInner.apply(code, up.decoder, up.bias, down.encoder, activation)
    return F.linear(inner, down.decoder, down.bias)


class _SlicedInner(torch.autograd.Function):
    """Rank code to rank code through the wide activation: activation(c D1 + b) E2."""

    @staticmethod
    def forward(ctx: Any, code: Tensor, D: Tensor, b: Tensor | None, E: Tensor, activation: Activation) -> Tensor:
        out = code.new_empty(*code.shape[:-1], E.shape[0])
        length = slice_length(len(D))
        for c, o in zip(_slices(code, length), _slices(out, length), strict=True):
            torch.mm(activation(F.linear(c, D, b)), E.mT, out=o)
        ctx.save_for_backward(code, D, b, E)
        ctx.activation = activation
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        code, D, b, E = ctx.saved_tensors
        grad_code, grad_D, grad_E = torch.empty_like(code), torch.zeros_like(D), torch.zeros_like(E)
        grad_b = None if b is None else torch.zeros_like(b)
        slices = (_slices(x, slice_length(len(D))) for x in (code, grad_code, grad_out.contiguous()))
        for c, g_c, g in zip(*slices, strict=True):
            wide = F.linear(c, D, b).requires_grad_()  # (slice, f)
            with torch.enable_grad():
                active = ctx.activation(wide)
            # out= and not addmm_, which torch's FLOP counter does not see.
            torch.addmm(grad_E, g.mT, active.detach(), out=grad_E)
            (g_wide,) = torch.autograd.grad(active, wide, g @ E)
            torch.addmm(grad_D, g_wide.mT, c, out=grad_D)
            if grad_b is not None:
                grad_b += g_wide.sum(0)
            torch.mm(g_wide, D, out=g_c)
        return grad_code, grad_D, grad_b, grad_E, None


def _slices(x: Tensor, length: int) -> tuple[Tensor, ...]:
    flat = x.view(-1, x.shape[-1])
    # An accelerator hides memory traffic by running wide: there, only what is kept for backward matters.
    return flat.split(length) if x.device.type == "cpu" else (flat,)
