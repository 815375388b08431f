"""The feed-forward block in slices of positions: act(x E1 D1) E2 D2, or dense act(x W1) W2.

Low-rank is the feed-forward block of the Low-Rank Transformer (Winata 2020, arXiv:1910.13923; Greenformers thesis,
Cahyawijaya 2021, 3.1.1). Its cost is not arithmetic: the activation (tokens x f) is the largest tensor of the layer,
and writing it to memory and reading it back takes longer than computing it. So it is only ever computed for a slice of
tokens that stays in the cache, and the backward pass computes it again from the rank-r code, for r f multiply-adds a
token. Kept for the backward pass: r numbers a token instead of 2 f. The dense form (Kitaev 2020, arXiv:2001.04451,
section 3, "chunking") keeps d numbers a token, those of the input, and costs d f multiply-adds a token more: it saves
memory, not time.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from greenformers._gradients import by_hand
from greenformers._torch import in_transform
from greenformers.lowrank.linear import LED, LinearLayer

Activation = Callable[[Tensor], Tensor]

WIDE = 256 * 3072
"""Numbers of the wide activation computed at once: 3 MiB in float32, which the last-level cache of two cores holds."""


def slice_length(width: int) -> int:
    """Number of tokens whose activations of this width stay in the cache."""
    return max(1, WIDE // width)


def can_slice(x: Tensor) -> bool:
    """Whether work on `x` may be done in slices.

    Compiled code fuses by itself and cannot see into slices; autocast chooses the types of single operators.
    """
    # There is no autocast for the meta device, on which operations are counted.
    return not torch.compiler.is_compiling() and (x.is_meta or not torch.is_autocast_enabled(x.device.type))


def sliced_feed_forward(
    x: Tensor, up: LinearLayer, down: LinearLayer, activation: Activation, length: int | None = None
) -> Tensor:
    """down(activation(up(x))) with the inner activation computed in slices, in both passes.

    Args:
        x: Input (..., d).
        up: Linear layer from d to f.
        down: Linear layer from f to d.
        activation: Elementwise function.
        length: Number of tokens of a slice; by default as many as stay in a CPU's cache, and all of them elsewhere.

    Returns:
        Output (..., d), the same numbers as the plain form.
    """
    code, D = (F.linear(x, up.encoder.weight), up.decoder.weight) if isinstance(up, LED) else (x, up.weight)
    E = down.encoder.weight if isinstance(down, LED) else down.weight
    given = code, D, up.bias, E, activation
    inner: Tensor = _plain(*given) if in_transform() else _SlicedInner.apply(*given, length)
    if isinstance(down, LED):
        return F.linear(inner, down.decoder.weight, down.bias)
    return inner if down.bias is None else inner + down.bias


def _plain(code: Tensor, D: Tensor, b: Tensor | None, E: Tensor, activation: Activation) -> Tensor:
    """The output of `_SlicedInner`, computed at once."""
    return F.linear(activation(F.linear(code, D, b)), E)


class _SlicedInner(torch.autograd.Function):
    """Rank code, or input, to rank code, or output, through the wide activation: activation(c D1 + b) E2."""

    @staticmethod
    def forward(
        ctx: Any, code: Tensor, D: Tensor, b: Tensor | None, E: Tensor, activation: Activation, length: int | None
    ) -> Tensor:
        given, code = code, code.contiguous()
        out = code.new_empty(*code.shape[:-1], E.shape[0])
        for c, o in zip(_slices(code, len(D), length), _slices(out, len(D), length), strict=True):
            torch.mm(activation(F.linear(c, D, b)), E.mT, out=o)
        ctx.save_for_backward(given, D, b, E)
        ctx.activation, ctx.length = activation, length
        return out

    @staticmethod
    @by_hand(4, lambda ctx, code, D, b, E: _plain(code, D, b, E, ctx.activation))
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        code, D, b, E = ctx.saved_tensors
        code = code.contiguous()
        # A frozen layer gets no gradient. Sums over slices are no less precise than the sum within one.
        wide_type = torch.promote_types(code.dtype, torch.float32)
        sums = (x.new_zeros(x.shape, dtype=wide_type) if x is not None and needed else None
                for x, needed in zip((D, b, E), ctx.needs_input_grad[1:4], strict=True))  # fmt: skip
        (grad_D, grad_b, grad_E), grad_code = sums, torch.empty_like(code)
        slices = (_slices(x, len(D), ctx.length) for x in (code, grad_code, grad_out.contiguous()))
        for c, g_c, g in zip(*slices, strict=True):
            wide = F.linear(c, D, b).requires_grad_()  # (slice, f)
            with torch.enable_grad():
                active = ctx.activation(wide)
            if grad_E is not None:
                _add_product(grad_E, g.mT, active.detach())
            (g_wide,) = torch.autograd.grad(active, wide, g @ E)
            if grad_D is not None:
                _add_product(grad_D, g_wide.mT, c)
            if grad_b is not None:
                grad_b += g_wide.sum(0, dtype=grad_b.dtype)
            torch.mm(g_wide, D, out=g_c)
        grads = (None if grad is None else grad.to(code.dtype) for grad in (grad_D, grad_b, grad_E))
        return grad_code, *grads, None, None


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Total <- total + a b, of whatever precision these are."""
    if total.dtype == a.dtype:
        torch.addmm(total, a, b, out=total)  # and not addmm_, which torch's FLOP counter does not see
    else:
        total += a @ b


def _slices(x: Tensor, width: int, length: int | None) -> tuple[Tensor, ...]:
    flat = x.view(-1, x.shape[-1])
    if length is not None:
        return flat.split(length)
    # An accelerator hides memory traffic by running wide: there, only what is kept for backward matters.
    return flat.split(slice_length(width)) if x.device.type == "cpu" else (flat,)
