"""Which weights of a matrix go, and how those left make up for them. Weights that go are exactly 0 afterwards.

W (m, n): rows are outputs. C = sum of x x^T (n, n) over the inputs of calibration texts.

| function | goes | update of the others |
|---|---|---|
| `magnitude` | least abs(W_ij), of a matrix or of each row | none |
| `wanda` (Sun 2023, arXiv:2306.11695) | least abs(W_ij) sqrt(C_jj) of each row | none |
| `sparsegpt` (Frantar & Alistarh 2023, arXiv:2301.00774) | least W_ij^2 / U_jj^2 of 128 columns | least squares |

With `two_of_four` two of each four neighbouring inputs go, for every output. Counts are exact: of equal scores the
first ones stay.

An input that is 0 on all texts is silent: C_jj = 0. Of such an input nothing is known, so it is taken to be as large as
the others are on average. By its 0 all its weights would go, though other texts may need them.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

BLOCK = 128
"""Columns among which `sparsegpt` chooses at once."""

DAMPING = 0.01
"""Share of the mean square of the inputs that `sparsegpt` adds to each."""


def count(keep: float, size: int) -> int:
    """The number of weights that stay of `size` weights."""
    return round(keep * size)


def largest(scores: Float[Tensor, "... n"], number: int) -> Bool[Tensor, "... n"]:
    """A mask of exactly `number` of the largest scores along the last dimension; of equal ones the first."""
    n = scores.shape[-1]
    if number in (0, n):
        return torch.full_like(scores, number > 0, dtype=torch.bool)
    edge = scores.kthvalue(n - number + 1, dim=-1, keepdim=True).values
    above, at = scores > edge, scores == edge
    room = number - above.sum(-1, keepdim=True)
    return above | (at & (at.cumsum(-1) <= room))


def pairs_of_four(scores: Float[Tensor, "m n"]) -> Bool[Tensor, "m n"]:
    """A mask of the two largest scores of each four neighbours in a row; n is a multiple of 4."""
    return largest(scores.unflatten(-1, (-1, 4)), 2).flatten(-2)


def magnitude(
    W: Float[Tensor, "m n"], *, keep: float, rows: bool = False, two_of_four: bool = False
) -> Float[Tensor, "m n"]:
    """The weights without the least, in absolute value, of the matrix.

    Args:
        W: Weights.
        keep: Share of the weights that stay.
        rows: Choose among the weights of each row.
        two_of_four: Choose among each four neighbours of a row, in place of `keep`.
    """
    if two_of_four:
        return _masked(W, pairs_of_four(W.abs()))
    if rows:
        return _masked(W, largest(W.abs(), count(keep, W.shape[1])))
    return magnitude_all([W], keep=keep)[0]


def magnitude_all(weights: Sequence[Tensor], *, keep: float) -> list[Tensor]:
    """Several matrices without the least weights, in absolute value, of all of them together."""
    scores = torch.cat([W.abs().flatten() for W in weights])
    masks = largest(scores, count(keep, len(scores))).split([W.numel() for W in weights])
    return [_masked(W, mask.view_as(W)) for W, mask in zip(weights, masks, strict=True)]


def wanda(
    W: Float[Tensor, "m n"], C: Float[Tensor, "n n"], *, keep: float, two_of_four: bool = False
) -> Float[Tensor, "m n"]:
    """The weights without those of each row whose products with their inputs are least, in the 2-norm over texts.

    Args:
        W: Weights.
        C: Sum of the products of inputs.
        keep: Share of the weights that stay.
        two_of_four: Choose among each four neighbours of a row, in place of `keep`.
    """
    # In half precision inputs might be infinite, and scores of many weights equal.
    scores = W.abs() * squares(C).sqrt().to(torch.promote_types(W.dtype, torch.float32))
    return _masked(W, pairs_of_four(scores) if two_of_four else largest(scores, count(keep, W.shape[1])))


def sparsegpt(
    W: Float[Tensor, "m n"], C: Float[Tensor, "n n"], *, keep: float, two_of_four: bool = False, block: int = BLOCK
) -> Float[Tensor, "m n"]:
    """The weights without some of each block of columns; those of later columns make up for every one that goes.

    H = C + 0.01 mean(diag C) I, and U is upper triangular with H^-1 = U^T U. Column after column, from left to right,

        e = (w_j - q_j) / U_jj,  w_k -= e U_jk for k > j,

    where q_j is w_j with zeros. That is the step of least squares on the inputs from j on (optimal brain surgeon), in
    which w_j^2 / U_jj^2 is the error that a weight leaves when it goes. Time O(m n^2 + n^3).

    Args:
        W: Weights.
        C: Sum of the products of inputs.
        keep: Share of the weights that stay.
        two_of_four: Choose two of each four columns as their turn comes, in place of `keep`.
        block: Columns among which the weights that go are chosen at once, before the first of them is changed.

    Raises:
        ValueError: W or C hold values that are not finite.
    """
    if not (W.isfinite().all() and C.isfinite().all()):
        raise ValueError("a weight or the inputs of calibration hold values that are not finite")
    m, n = W.shape
    Q, U = W.to(C.dtype, copy=True), inverse_factor(C)
    for start in range(0, n, block):
        end = min(start + block, n)
        columns, own = Q[:, start:end], U[start:end, start:end]
        scale = own.diagonal().square()
        stays = torch.ones_like(columns, dtype=torch.bool)
        if not two_of_four:
            number = count(keep, m * end) - count(keep, m * start)
            stays = largest((columns.square() / scale).flatten(), number).view_as(columns)
        errors = torch.zeros_like(columns)
        for j in range(end - start):
            if two_of_four and j % 4 == 0:
                stays[:, j : j + 4] = pairs_of_four(columns[:, j : j + 4].square() / scale[j : j + 4])
            errors[:, j] = torch.where(stays[:, j], 0, columns[:, j]) / own[j, j]
            columns[:, j + 1 :] -= torch.outer(errors[:, j], own[j, j + 1 :])
        columns.masked_fill_(~stays, 0)
        Q[:, end:] -= errors @ U[start:end, end:]
    return Q.to(W.dtype)


def squares(C: Float[Tensor, "n n"]) -> Float[Tensor, "n"]:
    """The sums of squares of all inputs, C_jj; for silent inputs the mean of the others."""
    heard = C.diagonal() > 0
    mean = C.diagonal()[heard].mean() if heard.any() else C.new_ones(())
    return C.diagonal().where(heard, mean)


def damped(C: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """C + 0.01 mean(diag C) I, with the mean of others for silent inputs."""
    seen, H = squares(C), C.clone()
    H.diagonal().copy_(seen + DAMPING * seen.mean())
    return H


def factor(H: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """The lower triangular L with H = L L^T.

    Covariances of inputs that hardly vary beside their mean may have lost their sign to rounding: the diagonal of H
    then grows, in place, until there is an L.

    Raises:
        ValueError: H holds numbers that are not finite.
    """
    more = DAMPING * H.diagonal().abs().mean()
    while True:
        L, fails = torch.linalg.cholesky_ex(H)
        if not fails:
            return L
        if not H.isfinite().all():
            raise ValueError("products of the inputs of a layer are not finite")
        H.diagonal().add_(more)
        more = 10 * more


def inverse_factor(C: Float[Tensor, "n n"], order: Int[Tensor, "n"] | None = None) -> Float[Tensor, "n n"]:
    """The upper triangular U with H^-1 = U^T U, H = C + 0.01 mean(diag C) I.

    Args:
        C: Sum of the products of inputs.
        order: Order of the inputs in H; by default their own.
    """
    # Each matrix is dropped as soon as the next one is there: of 11,008 inputs it takes 1 GB.
    H = damped(C if order is None else C[order[:, None], order])
    L = factor(H)
    del H
    inverse = torch.cholesky_inverse(L)
    del L
    return torch.linalg.cholesky(inverse, upper=True)


def _masked(W: Tensor, stays: Tensor) -> Tensor:
    return W.masked_fill(~stays, 0)
