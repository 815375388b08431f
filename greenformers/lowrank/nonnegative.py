"""Factorisation with non-negative factors. Greenformers thesis (Cahyawijaya 2021), 2.3.2.

The multiplicative update printed there has its transposes exchanged; that of Lee & Seung (2001) is
H <- H (A^T V) / (A^T A H). The forms here are exact in each block instead, and need far fewer sweeps.
"""

import torch
from jaxtyping import Float
from torch import Tensor

SWEEPS = 60


def nmf(
    W: Float[Tensor, "m n"], rank: int, generator: torch.Generator, sweeps: int = SWEEPS
) -> tuple[Float[Tensor, "m r"], Float[Tensor, "r n"]]:
    """W ~ D E from non-negative parts, by hierarchical alternating least squares. Cichocki & Phan 2009.

    Trained weights have both signs, which no non-negative product can follow. So some components are added and some
    are subtracted, W ~ A H - B G with all four non-negative: in the shares of the rank that the positive and the
    negative entries have of the squared norm. Where W is non-negative this is plain NMF.

    Returns:
        The factors D, whose columns each have one sign, and E >= 0.
    """
    share = W.clamp_min(0).square().sum() / W.square().sum().clamp_min(torch.finfo(W.dtype).tiny)
    added = round(rank * share.item())
    # Both signs get a component where W has both and the rank is above 1.
    if rank > 1 and 0 < share < 1:
        added = min(max(added, 1), rank - 1)
    signs = W.new_ones(rank)
    signs[added:] = -1
    both = signs[:, None] * signs
    scale = (W.abs().mean() / rank).sqrt()
    A, E = (torch.rand(rank, size, dtype=W.dtype, device=W.device, generator=generator).mul_(scale) for size in W.shape)
    for _ in range(sweeps):
        _exact_rows(E, signs[:, None] * (A @ W), both * (A @ A.mT))
        _exact_rows(A, signs[:, None] * (E @ W.mT), both * (E @ E.mT))
    return (A * signs[:, None]).mT, E


def _exact_rows(H: Tensor, product: Tensor, gram: Tensor) -> None:
    """Set each row of H in turn to the best non-negative one, given the others: row += (product - gram H) / gram_jj."""
    for j in range(len(H)):
        step = (product[j] - gram[j] @ H) / gram[j, j].clamp_min(torch.finfo(H.dtype).tiny)
        H[j] = (H[j] + step).clamp_min_(0)


def semi_nmf(
    W: Float[Tensor, "m n"], rank: int, generator: torch.Generator, sweeps: int = SWEEPS
) -> tuple[Float[Tensor, "m r"], Float[Tensor, "r n"]]:
    """W ~ D E with D of any sign and E >= 0. Ding, Li & Jordan 2010, by alternating least squares.

    Starts from the truncated SVD, with each component split by sign as far as the rank reaches (Gillis & Kumar 2015),
    so that the error begins near that of an SVD of half the rank.
    """
    V = torch.linalg.svd(W, full_matrices=False).Vh[: (rank + 1) // 2]
    E = torch.cat([V.clamp_min(0), (-V).clamp_min(0)])[:rank].contiguous()
    E += 1e-3 * E.mean() * torch.rand(E.shape, dtype=E.dtype, device=E.device, generator=generator)
    for _ in range(sweeps):
        D = _least_squares(W, E)
        _exact_rows(E, D.mT @ W, D.mT @ D)
    return _least_squares(W, E), E


def _least_squares(W: Tensor, E: Tensor) -> Tensor:
    return W @ E.mT @ torch.linalg.pinv(E @ E.mT, hermitian=True)
