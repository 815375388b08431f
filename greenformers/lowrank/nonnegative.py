"""Factorisation with non-negative factors. Thesis 2.3.2.

The multiplicative update that the thesis prints has its transposes exchanged; that of Lee & Seung (2001) is
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

    Trained weights have both signs, which no non-negative product can follow. W is the difference of its positive and
    its negative part; each gets a non-negative factorisation, and of the rank the share of its squared norm. Where W
    is non-negative this is plain NMF.

    Returns:
        D, whose columns each have one sign, and E >= 0.
    """
    parts = (W.clamp_min(0), (-W).clamp_min(0))
    share = parts[0].square().sum() / W.square().sum().clamp_min(torch.finfo(W.dtype).tiny)
    first = round(rank * share.item())
    # Both parts get a component where both are there and the rank has room.
    if rank > 1 and 0 < share < 1:
        first = min(max(first, 1), rank - 1)
    found = []
    for part, r, sign in ((parts[0], first, 1.0), (parts[1], rank - first, -1.0)):
        if r:
            A, H = _hals(part, r, generator, sweeps)
            found.append((sign * A, H))
    return torch.cat([A for A, _ in found], 1), torch.cat([H for _, H in found])


def _hals(V: Tensor, rank: int, generator: torch.Generator, sweeps: int) -> tuple[Tensor, Tensor]:
    scale = (V.mean() / rank).sqrt()
    A = torch.rand(V.shape[0], rank, dtype=V.dtype, device=V.device, generator=generator) * scale
    H = torch.rand(rank, V.shape[1], dtype=V.dtype, device=V.device, generator=generator) * scale
    for _ in range(sweeps):
        _exact_rows(H, A.mT @ V, A.mT @ A)
        _exact_rows(A.mT, H @ V.mT, H @ H.mT)
    return A, H


def _exact_rows(H: Tensor, product: Tensor, gram: Tensor) -> None:
    """Each row of H in turn the best non-negative one, given the others: row += (product - gram H) / gram_jj."""
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
