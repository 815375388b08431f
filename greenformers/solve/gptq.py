"""Rounding of second order: later weights make up for what earlier ones lose. GPTQ (Frantar 2023, arXiv:2210.17323).

H = C + 0.01 mean(diag C) I with C = sum of x x^T over the inputs, and U upper triangular with H^-1 = U^T U. Column
after column of W (m, n), from left to right, w^_j = s (q_j - z) is rounded, and

    e = (w_j - w^_j) / U_jj,  w_k -= e U_jk for k > j,

the step of least squares on the inputs from j on. In the order of falling H_jj (act order) the inputs that matter most
are rounded while all others can still make up for it; grids are then those of the weight as it was, since a group's
columns do not follow one another. Else a group has the grid of its weights as changed when its turn comes.

Rows know nothing of each other but the unit of their grids: a large weight is rounded some rows at a time.
"""

from dataclasses import dataclass
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from greenformers.solve.grid import Form, Grid, nearest
from greenformers.solve.sparsify import BLOCK, inverse_factor, squares

AT_ONCE = 2**24
"""Numbers of a weight that are rounded at once, each of which takes some 20 bytes beside it."""


@dataclass(frozen=True)
class Steps:
    """What follows from the inputs alone, the same for every rounding of their weights.

    Attributes:
        order: Columns in the order in which they are rounded.
        U: The factor of H^-1, of columns in this order.
    """

    order: Int[Tensor, "n"]
    U: Float[Tensor, "n n"]

    @classmethod
    def of(cls, C: Float[Tensor, "n n"], *, act_order: bool = True) -> Self:
        """The steps for inputs with a sum of products C."""
        n = len(C)
        order = squares(C).argsort(descending=True, stable=True) if act_order else torch.arange(n, device=C.device)
        return cls(order, inverse_factor(C, order))


def gptq(
    W: Float[Tensor, "m n"],
    C: Float[Tensor, "n n"],
    form: Form,
    *,
    act_order: bool = True,
    clip: bool = False,
    steps: Steps | None = None,
) -> tuple[Int[Tensor, "m n"], Grid]:
    """The numbers q and grids of a weight.

    Args:
        W: Weights.
        C: Sum of the products of inputs.
        form: The form of the grids.
        act_order: Round columns by falling sums of squares of their inputs.
        clip: Take narrower ranges, see `Grid.of`, where these lose less by the sizes of inputs.
        steps: What follows from C, where it is known already.

    Raises:
        ValueError: W or C hold values that are not finite.
    """
    if not (W.isfinite().all() and C.isfinite().all()):
        raise ValueError("a weight or the inputs of calibration hold values that are not finite")
    felt = squares(C) if clip else None
    steps = Steps.of(C, act_order=act_order) if steps is None else steps
    # The whole weight has one grid, or its grids one unit.
    grid = Grid.of(W, form, felt=felt if form.per == "tensor" else None)
    numbers, grids = [], []
    for rows in W.split(max(1, AT_ONCE // W.shape[1])):
        grids.append(grid if form.per == "tensor" else Grid.of(rows, form, grid.unit, felt=felt))
        numbers.append(_by_rows(rows, grids[-1], steps, felt, act_order=act_order))
    return torch.cat(numbers), grid if form.per == "tensor" else Grid.stacked(grids)


def _by_rows(
    W: Float[Tensor, "m n"], grid: Grid, steps: Steps, felt: Float[Tensor, "n"] | None, *, act_order: bool
) -> Int[Tensor, "m n"]:
    """The numbers q of some rows; groups in turn are given their grids in place."""
    form, n, (order, U) = grid.form, W.shape[1], (steps.order, steps.U)
    g = form.group_of(n)
    # Turned, since it goes column after column: numbers of a column lie beside each other.
    left = W.T.to(U.dtype)[order]
    scale, zero = (x.expand(len(W), n).T[order] for x in grid.columns(0, n, n))
    q = torch.zeros_like(left, dtype=torch.uint8)
    # A group that ends in a later block would be given its grid before this block's errors have reached it.
    block = BLOCK if act_order or form.per != "group" else -(-BLOCK // g) * g
    for start in range(0, n, block):
        end = min(start + block, n)
        errors = left.new_zeros(end - start, len(W))
        for j in range(start, end):
            if not act_order and form.per == "group" and j % g == 0:
                fresh = Grid.of(left[j : j + g].T, form, grid.unit, felt=None if felt is None else felt[j : j + g])
                at = slice(j // g, j // g + 1)
                grid.steps[:, at] = fresh.steps
                if grid.zero is not None and fresh.zero is not None:
                    grid.zero[:, at] = fresh.zero
                scale[j : j + g], zero[j : j + g] = (x.T for x in grid.columns(j, min(j + g, n), n))
            w, s, z = left[j], scale[j].to(U.dtype), zero[j].to(U.dtype)
            rounded = nearest(w, s, z, form.levels)
            q[j] = rounded
            errors[j - start] = (w - s * (rounded - z)) / U[j, j]
            left[j + 1 : end].addr_(U[j, j + 1 : end], errors[j - start], alpha=-1)
        left[end:].addmm_(U[start:end, end:].T, errors, alpha=-1)
    back = torch.empty_like(order)
    back[order] = torch.arange(n, device=order.device)
    return q[back].T.contiguous()
