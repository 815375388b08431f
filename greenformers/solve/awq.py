"""Rounding with scales of the inputs: large inputs meet weights that were rounded finely. AWQ (Lin 2023,
arXiv:2306.00978).

W diag(s) is rounded and x / s multiplied by it, with s_j = a_j^p / sqrt(max a^p min a^p) for the mean absolute value
a_j of input j, and that p of 0, 0.05, ..., 0.95 that loses least of the layer's output, tr D C D^T of the change D.
"""  # noqa: D205

import torch
from jaxtyping import Float, Int
from torch import Tensor

from greenformers.solve.grid import Form, Grid
from greenformers.train.bf16 import HALVES

POWERS = tuple(step / 20 for step in range(20))


def awq(
    W: Float[Tensor, "m n"], C: Float[Tensor, "n n"], size: Float[Tensor, "n"], form: Form, *, clip: bool = False
) -> tuple[Int[Tensor, "m n"], Grid, Float[Tensor, "n"]]:
    """The numbers q of W diag(s), their grids, and s.

    Args:
        W: Weights.
        C: Sum of the products of inputs.
        size: Mean absolute values of the inputs.
        clip: Take narrower ranges, see `Grid.of`, where these lose less by the sizes of inputs.
        form: The form of the grids.
    """
    dtype, W = W.dtype if W.dtype in HALVES else torch.float32, W.to(C.dtype)
    a = size.clamp(min=1e-4 * float(size.mean()) or 1)  # a silent input is scaled as a small one
    best: tuple[float, Tensor, Grid, Tensor] | None = None
    for power in POWERS:
        s = a**power
        s = (s / (s.max() * s.min()).sqrt()).to(dtype).float()  # as it will be held
        grid = Grid.of(W * s, form)
        q = grid.round(W * s)
        D = grid.values(q) / s - W
        lost = float(((D @ C) * D).sum())
        if best is None or lost < best[0]:
            best = lost, q, grid, s
    assert best is not None
    _, q, grid, s = best
    if clip:
        grid = Grid.of(W * s, form, felt=C.diagonal() / s.square())
        q = grid.round(W * s)
    return q, grid, s
