"""The product of a few rows with a weight of at most 4 bits that stays packed, by a kernel of torch on a CPU.

A weight s (q - z) is s (p - 8) + c with p = q + 8 - h and c = s (h - z), which the kernel takes with s and c in
bfloat16; h is half of the number of values of q, so that c is small. Inputs are rounded to bfloat16 too. With few rows
a product takes the time in which its weight is read, an eighth of that of float32: `benchmarks/few_bits_speed.py`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from greenformers._torch import has_int4, int4_matmul, pack_int4

if TYPE_CHECKING:
    from greenformers.changes._bits_layers import Packed

ROWS = 64
"""Rows from about which on a product is faster with the unpacked weight."""

LEAST = 2**16
"""Numbers of a weight below which it is read in no time."""

GROUPS = (256, 128, 64, 32)
"""Inputs that share a step, as the kernel takes them."""

BITS, MIDDLE, OUTPUTS = 4, 8, 16
"""Bits of a number in the kernel's layout, the number that stands for 0, and what outputs are a multiple of."""


def kernel(held: "Packed") -> Callable[[Tensor], Tensor] | None:
    """The float32 product of rows (N, n) with a weight; None where there is no kernel for it."""
    # The inputs that share a step; where all of a row do, any group will do that fits.
    shared = held.form.group_of(held.n)
    group = next((g for g in GROUPS if shared % g == 0), GROUPS[-1] if shared == held.n else None)
    if held.form.bits > BITS or held.left is not None or group is None or not has_int4():
        return None
    m, n = held.m, held.n
    rows, columns = -m % OUTPUTS, -n % group
    half = (held.form.levels + 1) // 2
    packed = pack_int4(F.pad(held.q() + MIDDLE - half, (0, columns, 0, rows)))
    scale, zero = (x.expand(m, n) for x in held.grid.columns(0, n, n))
    scale, added = (F.pad(x[:, ::group], (0, 0, 0, rows)).T for x in (scale, scale * (half - zero)))
    grids = torch.stack([scale, added], -1).bfloat16().contiguous()
    inputs = None if held.inputs is None else held.inputs.float()

    def product(x: Tensor) -> Tensor:
        x = x if inputs is None else x / inputs
        y = int4_matmul(F.pad(x, (0, columns)) if columns else x, packed, group, grids)
        return y[:, :m] if rows else y

    return product
