"""A weight as a rounded one and a product of two narrow ones: W ~ Q + L R.

LoRC (Yao 2023, arXiv:2303.08302) and LQER (Zhang 2024, arXiv:2402.02446): L R is the part of what rounding loses that
does most to the output, the truncated SVD of (W - Q) S with C = S S^T for the products of inputs C, times S^-1. Here
the two take turns: Q is rounded again for W - L R, and of all the pairs the one that loses least is taken.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from greenformers.lowrank.factorize import Statistics, factorize
from greenformers.solve.grid import Form, Grid
from greenformers.solve.sparsify import damped

TURNS = 3
"""How often the weight is rounded anew."""

FACTORS = Form(8, "row")
"""The form of L and R."""

Rounded = tuple[Int[Tensor, "m n"], Grid]


def corrected(
    W: Float[Tensor, "m n"], C: Float[Tensor, "n n"], rank: int, rounded: Callable[[Tensor], Rounded]
) -> tuple[Rounded, Rounded, Rounded]:
    """Numbers and grids of Q, L (m, rank) and R (rank, n).

    Args:
        W: Weights.
        C: Sum of the products of inputs.
        rank: Number of columns of L.
        rounded: Function that rounds a weight, see `greenformers.solve.gptq`.
    """
    H = damped(C)
    W = W.to(H.dtype)
    left: Tensor = torch.zeros_like(W)
    best: tuple[float, Rounded, Rounded, Rounded] | None = None
    for _ in range(TURNS):
        q = rounded(W - left)
        Q = q[1].values(q[0]).to(H.dtype)
        rest = factorize(W - Q, rank, "activation", Statistics(H))
        L, R = (narrow(part.float()) for part in (rest.decoder[:, :rank], rest.encoder[:rank]))
        left = (L[1].values(L[0]) @ R[1].values(R[0])).to(H.dtype)
        D = W - Q - left
        lost = ((D @ H) * D).sum().item()
        if best is None or lost < best[0]:
            best = lost, q, L, R
    assert best is not None
    return best[1:]


def narrow(W: Float[Tensor, "m n"]) -> Rounded:
    """Numbers and grid of L or R; what is on such a grid already stays as it is."""
    grid = Grid.of(W, FACTORS)
    return grid.round(W), grid
