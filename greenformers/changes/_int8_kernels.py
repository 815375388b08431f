"""How int8 linear layers multiply on a CPU: three kernels, of which the fastest that torch has is taken.

`fused`: inputs are rounded by the least and greatest value of all tokens, within one kernel of torch, which torch
proposes to remove. `by_token`: each token x has a middle c and half a range h of its own,

    q = round(127 (x - c) / h),    y = (h / 127) s (q q_W^T) + c s (1 q_W^T) + b,

with the int8 weight q_W and its scales s, so that what a token becomes does not depend on the others. `prepacked` is
the same with a weight that lies in the order of oneDNN. Shapes and times: `benchmarks/int8_linear.py`.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int8
from torch import Tensor

from greenformers._torch import (
    has_fused_int8,
    has_prepacked_int8,
    has_vnni,
    int8_linear,
    int8_matmul,
    pack_int8,
    prepack_int8,
    prepacked_int8_matmul,
)

Kernel = Callable[[Tensor], Tensor]

LEVELS = 127
WHOLE = 1.5 * 2**23
"""Float32 numbers of this size are a unit apart: a sum with it is rounded, and its lowest byte is the int8 number."""
LARGE = 2**20
"""Numbers of a weight from which on the time to read it, and to put it in order, is more than that of calls."""


def kernel(weight: Int8[Tensor, "m n"], scale: Float[Tensor, "m"], bias: Float[Tensor, "m"] | None) -> Kernel:
    """The fastest product with a weight: a function of float32 inputs (..., n), of two dimensions or more."""
    large = weight.numel() >= LARGE
    several = by_token
    if has_fused_int8():
        several = fused
    elif large and has_prepacked_int8():
        several = prepacked
    product = several(weight, scale, bias)
    # With VNNI `int8_matmul` multiplies a single row by a weight as it lies.
    if not (large and has_vnni()) or several is by_token:
        return product
    n, single = weight.shape[1], by_token(weight, scale, bias)
    return lambda x: (single if x.numel() == n else product)(x)


def fused(weight: Int8[Tensor, "m n"], scale: Float[Tensor, "m"], bias: Float[Tensor, "m"] | None) -> Kernel:
    """One kernel of torch, of a packed weight."""
    packed = pack_int8(weight, scale, bias)
    return lambda x: int8_linear(x, packed)


def by_token(weight: Int8[Tensor, "m n"], scale: Float[Tensor, "m"], bias: Float[Tensor, "m"] | None) -> Kernel:
    """Operators of torch around `int8_matmul`, of the weight as it lies."""
    m, n = weight.shape
    whole, step, (base, middle) = torch.full((n,), WHOLE), scale / LEVELS, _added(weight, scale, bias)

    def product(x: Tensor) -> Tensor:
        q, h, c = _rounded(x.reshape(-1, n), whole)
        sums = int8_matmul(q, weight.T)  # (N, m), int32
        y = sums.view(torch.float32).copy_(sums).mul_(h)  # in the place of the sums, which are as wide
        return torch.addcmul(base, y, step, out=y).addcmul_(c, middle).view(*x.shape[:-1], m)

    return product


def prepacked(weight: Int8[Tensor, "m n"], scale: Float[Tensor, "m"], bias: Float[Tensor, "m"] | None) -> Kernel:
    """Operators of torch around `prepacked_int8_matmul`, of a packed weight."""
    m, n = weight.shape
    packed, (base, middle) = prepack_int8(weight, scale / LEVELS), _added(weight, scale, bias)
    whole = torch.full((n,), WHOLE + 128)  # which makes the integers unsigned

    def product(x: Tensor) -> Tensor:
        q, h, c = _rounded(x.reshape(-1, n), whole)
        y = prepacked_int8_matmul(q.view(torch.uint8), packed)  # (N, m)
        return torch.addcmul(base, y, h, out=y).addcmul_(c, middle).view(*x.shape[:-1], m)

    return product


def _rounded(
    x: Float[Tensor, "N n"], whole: Float[Tensor, "n"]
) -> tuple[Int8[Tensor, "N n"], Float[Tensor, "N 1"], Float[Tensor, "N 1"]]:
    """The integers q, h and c. Where a token holds one value throughout, h is 0, and any integers will do."""
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    c = torch.lerp(low, high, 0.5)
    h = high - c
    q = torch.addcmul(whole, x - c, h.reciprocal(), value=LEVELS).view(torch.int32).to(torch.int8)
    return q, h, c


def _added(
    weight: Int8[Tensor, "m n"], scale: Float[Tensor, "m"], bias: Tensor | None
) -> tuple[Float[Tensor, "m"], Float[Tensor, "m"]]:
    """The bias, and s (1 q_W^T): what the middle of a token is multiplied by."""
    base = torch.zeros_like(scale) if bias is None else bias.detach().float()
    return base, scale * weight.sum(1, dtype=torch.int32)
