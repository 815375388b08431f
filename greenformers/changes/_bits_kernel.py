"""The product of a few rows with a weight of at most 4 bits that stays packed, by a kernel of torch on a CPU.

A weight s (q - z) is s (p - 8) + c with p = q + 8 - h and c = s (h - z), which the kernel takes with s and c in
bfloat16; h is half of the number of values of q, so that c is small. Inputs are rounded to bfloat16 too. With few rows
a product takes the time in which its weight is read, an eighth of that of float32: `benchmarks/few_bits_speed.py`.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from greenformers._torch import has_int4, int4_matmul, pack_int4
from greenformers.solve.grid import Form, Grid

Kernel = Callable[[Tensor], Tensor]

ROWS = 64
"""Rows from about which on a product is faster with the unpacked weight."""

LEAST = 2**16
"""Numbers of a weight below which it is read in no time."""

GROUPS = (256, 128, 64, 32)
"""Inputs that share a step, as the kernel takes them."""

BITS, MIDDLE, OUTPUTS = 4, 8, 16
"""Bits of a number in the kernel's layout, the number that stands for 0, and what outputs are a multiple of."""


def group_for(form: Form, n: int) -> int | None:
    """The group that the kernel takes for a weight of n inputs; None where it has none."""
    # The inputs that share a step; where all of a row do, any group will do that fits.
    shared = form.group_of(n)
    fitting = [g for g in GROUPS if shared % g == 0]
    unpadded = [g for g in fitting if n % g == 0]  # inputs need no further columns
    group = next(iter(unpadded or fitting), GROUPS[-1] if shared == n else None)
    return group if form.bits <= BITS and has_int4() else None


def kernel(q: Int[Tensor, "m n"], grid: Grid, inputs: Float[Tensor, "n"] | None, group: int) -> Kernel:
    """The product of rows (..., n) with the weight of numbers q, their grids and scales of inputs, in their type."""
    m, n = q.shape
    rows, columns = -m % OUTPUTS, -n % group
    half = (grid.form.levels + 1) // 2
    packed = pack_int4(F.pad(q + MIDDLE - half, (0, columns, 0, rows)))
    scale, zero = (x.expand(m, n) for x in grid.columns(0, n, n))
    scale, added = (F.pad(x[:, ::group], (0, 0, 0, rows)).T for x in (scale, scale * (half - zero)))
    grids = torch.stack([scale, added], -1).bfloat16().contiguous()
    scales = None if inputs is None else inputs.float()

    def product(x: Tensor) -> Tensor:
        y = x if scales is None else (x / scales).to(x.dtype)
        y = F.pad(y, (0, columns)) if columns else y
        y = int4_matmul(y.reshape(-1, n + columns), packed, group, grids)
        return (y[:, :m] if rows else y).view(*x.shape[:-1], m)

    return product
