"""Factorise trained weights: W (m x n) ~ D E with D (m x r) and E (r x n), by the best known closed forms.

Every solver but `random`, `nmf` and `semi_nmf` is the truncated SVD of a whitened weight M = T^T W S, with C = S S^T
and G = T T^T, whose dropped squared singular values are the error it makes, in the norm that it minimises:

    svd, randomized   |W - D E|^2                       Eckart & Young 1936; Halko 2011, arXiv:0909.4061
    activation        |(W - D E) X|^2 = tr D' C D'^T    C = X X^T; Wang 2024, arXiv:2403.07378 (SVD-LLM)
    sequential        |W X - D E X^|^2                  X^ the inputs after the layers before are compressed
    loss              tr G D' C D'^T, D' = W - D E      G = d d^T of output gradients: K-FAC's second-order loss
    sequential_loss   tr G R R^T, R = W X - D E X^      both at once

Truncations are nested: the first k columns and rows of the factors of a higher rank are those of rank k.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from greenformers.lowrank.nonnegative import nmf, semi_nmf

SPECTRAL = ("svd", "randomized", "activation", "sequential", "loss", "sequential_loss")
"""Solvers with a spectrum, from which ranks can be chosen."""

NEEDS = {
    "activation": ("inputs",),
    "sequential": ("inputs", "cross"),
    "loss": ("inputs", "gradients"),
    "sequential_loss": ("inputs", "cross", "gradients"),
}
CALIBRATED = tuple(NEEDS)
"""Solvers that need statistics; `NEEDS` says which."""

SOLVERS = (*SPECTRAL, "nmf", "semi_nmf", "random")

TINY = 1e-12
"""Eigenvalues of a covariance below this share of the largest are dropped: float64 does not resolve them."""

NOISE = 1e-7
"""In directions with no more than this share of the energy of X^, float32 products do not resolve X^ - X."""

RESOLVED = {torch.float32: 0.1, torch.float64: 1e-7}
"""Dropped energy, in units of the largest, down to which eigenvectors of a Gram matrix give the optimum to 1e-6."""


@dataclass(frozen=True)
class Statistics:
    """Statistics of the inputs and outputs of a layer in calibration: sums over positions.

    Attributes:
        inputs: C = sum x x^T (n, n), where x is the input of the layer after the layers before it were compressed.
        cross: Sum y x^T (m, n), where y = W x0 is the output in the dense model, without bias. For sequential solvers.
        total: Sum y^T y of these outputs, or sum y^T G y: the errors of sequential solvers are relative to it.
        gradients: G = E d d^T (m, m) over gradients d of the loss in the outputs, up to a factor. For solvers with a
            loss.
        outputs: Sum y y^T (m, m), in place of `inputs` where only the spectrum is computed.
        mean: Mean of x (n,), where the sums above are of x and y less their means, which a bias makes up for.
        output_mean: Mean of y (m,), in the same case.
    """

    inputs: Float[Tensor, "n n"] | None = None
    cross: Float[Tensor, "m n"] | None = None
    total: float | None = None
    gradients: Float[Tensor, "m m"] | None = None
    outputs: Float[Tensor, "m m"] | None = None
    mean: Float[Tensor, " n"] | None = None
    output_mean: Float[Tensor, " m"] | None = None


@dataclass(frozen=True)
class Factors:
    """D and E of the highest rank asked for; with a spectrum, components are in order of importance.

    Attributes:
        decoder: The factor D (m, r).
        encoder: The factor E (r, n).
        energies: Squared singular values of the whitened weight, in descending order: all of them, or the first r and
            the sum of the others (`randomized`), or None (solvers without a spectrum).
    """

    decoder: Float[Tensor, "m r"]
    encoder: Float[Tensor, "r n"]
    energies: Float[Tensor, " p"] | None

    def truncate(self, rank: int) -> "Factors":
        """The first `rank` components."""
        return Factors(self.decoder[:, :rank].contiguous(), self.encoder[:rank].contiguous(), self.energies)

    def error(self, rank: int) -> float | None:
        """Relative error at a rank, in the norm the solver minimises, from the spectrum alone.

        For `sequential` and `sequential_loss` it is the error beyond that of the best weight of full rank.
        """
        if self.energies is None:
            return None
        total = self.energies.sum().item()
        return (self.energies[rank:].sum().item() / total) ** 0.5 if total else 0.0


def factorize(
    weight: Float[Tensor, "m n"], rank: int, solver: str = "svd", statistics: Statistics | None = None, seed: int = 0
) -> Factors:
    """Factorise one matrix.

    Args:
        weight: The matrix W, of any float dtype. The factors have its dtype and device.
        rank: Rank r, in 1..min(m, n).
        solver: One of `SOLVERS`.
        statistics: Calibration statistics, for the solvers of `CALIBRATED`.
        seed: Seed of `randomized`, `nmf`, `semi_nmf` and `random`.

    Raises:
        ValueError: The rank or the solver is out of range, the weight or the statistics are not finite, or statistics
            are missing.
    """
    if solver not in SOLVERS:
        raise ValueError(f"solver must be one of {', '.join(SOLVERS)}; got {solver!r}")
    m, n = weight.shape
    if not 1 <= rank <= min(m, n):
        raise ValueError(f"rank must be in 1..{min(m, n)} for a {m} x {n} weight, got {rank}")
    W = weight.detach()
    largest = _largest(W)
    if solver in SPECTRAL:
        factors = _spectral(W if W.dtype == torch.float64 else W.float(), largest, rank, solver, statistics, seed)
    else:
        generator = torch.Generator(W.device).manual_seed(seed)
        D, E = _DRAWN[solver](W.double(), rank, generator)
        factors = Factors(D, E, None) if solver == "random" else _balanced(D, E, None)
    decoder, encoder = (factor.to(weight.dtype).contiguous() for factor in (factors.decoder, factors.encoder))
    return Factors(decoder, encoder, factors.energies)


def spectrum(
    weight: Float[Tensor, "m n"], solver: str = "svd", statistics: Statistics | None = None
) -> Float[Tensor, " p"]:
    """The energies of `factorize`, in descending order, without factors: for choosing ranks before factorising.

    Args:
        weight: The matrix W, of any float dtype.
        solver: "svd", "activation" or "loss".
        statistics: Calibration statistics, for "activation" and "loss".

    Raises:
        ValueError: The solver is another one, the weight or the statistics are not finite, or statistics are missing.
    """
    if solver not in ("svd", "activation", "loss"):
        raise ValueError(f"the solver of a spectrum must be svd, activation or loss; got {solver!r}")
    W = weight.detach()
    scale = _scale(_largest(W))
    W = W.double() / scale
    C, G = None, None
    if solver in CALIBRATED:
        outputs = None if statistics is None else statistics.outputs
        covariances = _checked(W.shape, solver, statistics, without=() if outputs is None else ("inputs",))
        C, G = covariances.get("inputs"), covariances.get("gradients")
        if outputs is not None:
            T = None if G is None else root(G)[0]
            H = outputs.double() / scale**2
            return _falling(H if T is None else T.mT @ H @ T) * scale**2
    return _falling(_whitened_gram(W, C, G)[0]) * scale**2


def _falling(H: Tensor) -> Tensor:
    """The eigenvalues of a covariance, the largest first."""
    return torch.linalg.eigvalsh(H).flip(0).clamp_min(0)


def _largest(W: Tensor) -> float:
    """The largest entry by size; raises where one is not finite."""
    largest = max(abs(end.item()) for end in W.aminmax())
    if not largest < float("inf"):
        raise ValueError(f"the weight holds {(~W.isfinite()).sum().item()} values that are not finite")
    return largest


def _scale(largest: float) -> float:
    """Divisor of a weight, so that squares neither overflow nor vanish: a power of two, so scaling is exact."""
    return 1.0 if 1e-6 < largest < 1e6 else 2.0 ** max(math.frexp(largest)[1] - 1, -120)


def _spectral(W: Tensor, largest: float, rank: int, solver: str, statistics: Statistics | None, seed: int) -> Factors:
    scale = _scale(largest)
    W = W if scale == 1 else W / scale
    if solver in CALIBRATED:
        if scale != 1 and statistics is not None and statistics.cross is not None:
            statistics = replace(statistics, cross=statistics.cross / scale)
        factors = _calibrated(W.double(), rank, solver, statistics)
    else:
        factors = _balanced(*_truncated(W, rank)) if solver == "svd" else randomized(W, rank, seed=seed)
    if scale == 1 or factors.energies is None:
        return factors
    return Factors(factors.decoder * scale**0.5, factors.encoder * scale**0.5, factors.energies * scale**2)


def _checked(
    shape: Sequence[int], solver: str, statistics: Statistics | None, without: Sequence[str] = ()
) -> dict[str, Tensor]:
    """The statistics that a solver needs, in float64, by name."""
    m, n = shape
    sizes = {"inputs": (n, n), "cross": (m, n), "gradients": (m, m)}
    covariances = {}
    for name in (name for name in NEEDS[solver] if name not in without):
        matrix = getattr(statistics, name, None)
        if matrix is None:
            raise ValueError(f"solver {solver!r} needs the covariance {name!r}: give it calibration data")
        if matrix.shape != sizes[name]:
            raise ValueError(f"the covariance {name!r} must be {sizes[name]}, got {tuple(matrix.shape)}")
        if not matrix.isfinite().all():
            raise ValueError(f"the covariance {name!r} holds values that are not finite")
        covariances[name] = matrix.double()
    return covariances


def _calibrated(W: Tensor, rank: int, solver: str, statistics: Statistics | None) -> Factors:
    covariances = _checked(W.shape, solver, statistics)
    C, G = covariances["inputs"], covariances.get("gradients")
    if "cross" in covariances:
        W = _refitted(W, C, covariances["cross"])
    H, encode = _whitened_gram(W, C, G)
    eigenvalues, U = torch.linalg.eigh(H, UPLO="U")
    energies = eigenvalues.flip(0).clamp_min(0)
    if not energies.any():  # all inputs were zero: every choice is as good, so the plain SVD
        return _balanced(*_truncated(W, rank)[:2], W.new_zeros(min(W.shape)))
    if energies[rank:].sum() < RESOLVED[torch.float64] * energies[0]:
        return _from_roots(W, rank, C, G)
    # Of all minimisers the one nearest to W outside the span of the inputs: U^T T^T W needs no inverse of S.
    encoder = encode(U[:, -rank:].flip(1), energies[:rank])
    # Given E, the best D is W C E^T (E C E^T)^-1, and E C E^T is diagonal: the energies.
    return _balanced(W @ (C @ encoder.mT) / energies[:rank], encoder, energies)


def _refitted(W: Tensor, C: Tensor, cross: Tensor) -> Tensor:
    """The matrix V nearest to W among those that minimise |Y - V X^|: W + (Y X^^T - W C) C^+, C = X^ X^^T."""
    missing = cross - W @ C
    # Each matrix (n, n) is dropped as soon as it has told what it can: of 11,008 inputs it takes 1 GB.
    if _above(C, NOISE * C.trace()):
        return W + torch.cholesky_solve(missing.mT, torch.linalg.cholesky(C)).mT
    energies, Q = torch.linalg.eigh(C, UPLO="U")
    resolved = (energies > TINY * energies[-1].clamp_min(0)) & (energies > NOISE * energies.clamp_min(0).sum())
    Q, energies = Q[:, resolved], energies[resolved]
    return W + (missing @ Q / energies) @ Q.mT


def _above(C: Tensor, noise: Tensor) -> bool:
    """Whether all eigenvalues are above the noise. Asking costs a sixth of a decomposition by eigenvalues."""
    less = C.clone()
    less.diagonal().sub_(noise)
    return not torch.linalg.cholesky_ex(less).info


def _whitened_gram(W: Tensor, C: Tensor | None, G: Tensor | None) -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]:
    """The smaller of M M^T and M^T M, M = T^T W S, and a function from its eigenvectors and energies to E = U^T T^T W.

    Of the two covariances only the smaller one needs a root.
    """
    m, n = W.shape
    if m <= n:
        TW = W if G is None else root(G)[0].mT @ W
        return TW @ (TW if C is None else TW @ C).mT, lambda U, _: U.mT @ TW
    GW = W if G is None else G @ W
    S = None if C is None else root(C)[0]
    SWGW = W.mT @ GW if S is None else S.mT @ (W.mT @ GW)
    # U^T T^T W = z^-1 V^T M^T T^T W
    return SWGW if S is None else SWGW @ S, lambda V, energies: (V / energies.sqrt()).mT @ SWGW


def _from_roots(W: Tensor, rank: int, C: Tensor, G: Tensor | None) -> Factors:
    """Factors from M itself, where M M^T does not resolve the dropped energy."""
    S = root(C)[0]
    TW = W if G is None else root(G)[0].mT @ W
    M = TW @ S
    left, _, energies = _truncated(M, min(rank, *M.shape))
    decoder = left * torch.where(left.any(0), 1 / left.norm(dim=0), 0)
    encoder = decoder.mT @ TW
    if G is not None:
        kept_energies = energies[: len(encoder)]
        decoder = W @ S @ (encoder @ S).mT * torch.where(kept_energies > TINY * kept_energies[0], 1 / kept_energies, 0)
    return _balanced(decoder, encoder, energies, rank)


def root(C: Float[Tensor, "n n"]) -> tuple[Float[Tensor, "n p"], Float[Tensor, "p n"]]:
    """S and its pseudo-inverse, with C = S S^T, for a covariance of any rank p.

    By eigenvalues: with fewer positions than inputs C has no Cholesky factor.
    """
    eigenvalues, Q = torch.linalg.eigh(C.double(), UPLO="U")
    resolved = eigenvalues > TINY * eigenvalues[-1].clamp_min(0)
    eigenvalues, Q = eigenvalues[resolved].sqrt(), Q[:, resolved]
    return Q * eigenvalues, (Q / eigenvalues).mT


def _truncated(M: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """The truncated SVD of M as two factors, one of them orthonormal, and all squared singular values in float64.

    From eigenvectors V of the smaller of M^T M and M M^T: M V V^T is M projected, so an error e in V costs e^2. Where
    too little energy is dropped for that, the same in float64, and if that is not enough an SVD of M itself.
    """
    wide = M.shape[0] < M.shape[1]
    A = M.mT if wide else M  # (p, q), p >= q
    eigenvalues, V = torch.linalg.eigh(gram(A), UPLO="U")  # a tenth faster than "L"
    energies = eigenvalues.double().flip(0).clamp_min(0)
    if energies[rank:].sum() < RESOLVED[M.dtype] * energies[0]:
        if M.dtype == torch.float32:
            return _truncated(M.double(), rank)
        U, z, Vh = torch.linalg.svd(M, full_matrices=False)
        return U[:, :rank] * z[:rank], Vh[:rank], z.square()
    V = V[:, -rank:].flip(1)
    return (V, (A @ V).mT, energies) if wide else (A @ V, V.mT, energies)


def gram(A: Float[Tensor, "*g p q"]) -> Float[Tensor, "*g q q"]:
    """A^T A from five eighths of its products: blocks above the diagonal are copied from those below."""
    q = A.shape[-1]
    step = -(-q // 4)
    H = A.new_empty(*A.shape[:-2], q, q)
    for i in range(0, q, step):
        H[..., i : i + step, : i + step] = A[..., i : i + step].mT @ A[..., : i + step]
        H[..., :i, i : i + step] = H[..., i : i + step, :i].mT
    return H


def _balanced(decoder: Tensor, encoder: Tensor, energies: Tensor | None, rank: int = 0) -> Factors:
    """The same product from components whose column of D and row of E have one norm, padded with zeros up to the rank.

    Half precision then holds both factors, and both learn at one rate. Of the two signs a component can have, it gets
    the one in which the largest entry of its row of E is positive.
    """
    d, e = decoder.square().sum(0).sqrt(), encoder.square().sum(1).sqrt()
    nonzero = (d > 0) & (e > 0)
    sign = torch.where(encoder.amax(1) < -encoder.amin(1), -1, 1)
    decoder = decoder * torch.where(nonzero, sign * (e / d).sqrt(), 0)
    encoder = encoder * torch.where(nonzero, sign * (d / e).sqrt(), 0)[:, None]
    if rank > len(d):
        decoder, encoder = pad(decoder, (0, rank - len(d))), pad(encoder, (0, 0, 0, rank - len(d)))
    return Factors(decoder, encoder, energies)


def randomized(
    W: Float[Tensor, "m n"], rank: int, *, oversample: int | None = None, power: int = 4, seed: int = 0
) -> Factors:
    """Truncated SVD from a random sketch. Halko 2011, arXiv:0909.4061, with a Chebyshev filter for power iterations.

    H, the smaller of W^T W and W W^T, is formed once. The sketch is T(H) H X: X is random, T the Chebyshev polynomial
    of degree `power` on an interval that holds only eigenvalues to be damped, from 0 to the least Ritz value of H X.
    For oversample >= 2 (theorems 9.1 and 10.5, the filter's ratio at the singular values s_r and s_r+1 for rho)

        expected |W - D E|^2 <= (1 + rho^2 r / (oversample - 1)) |W - W_r|^2,    rho <= (s_r+1 / s_r)^(2 power + 1).

    On trained weights |W - D E| is 0.05 to 0.2 % over the optimum.
    Time 2 q^2 (5/8 p + (power + 1) (r + oversample)) + O(p r (q + r)), for p >= q the sides of W.

    Args:
        W: The matrix, float32 or float64, with entries whose fourth power neither overflows nor vanishes.
        rank: Rank r.
        oversample: Number of columns of the sketch beyond r; by default a quarter of r, at least 8.
        power: Degree of the Chebyshev filter.
        seed: Seed of the sketch.
    """
    A = W if W.shape[0] >= W.shape[1] else W.mT
    width = rank + (max(rank // 4, 8) if oversample is None else oversample)
    if 2 * width > A.shape[1]:  # an exact solution costs no more
        return _balanced(*_truncated(W, rank))
    H = gram(A)
    generator = torch.Generator(W.device).manual_seed(seed)
    X = torch.randn(A.shape[1], width, dtype=W.dtype, device=W.device, generator=generator)
    Q = _filtered(H, torch.linalg.qr(H @ X).Q, power)
    B = A @ Q
    Y = torch.linalg.eigh(B.mT @ B, UPLO="U").eigenvectors[:, -rank:].flip(1)
    left, right = B @ Y, (Q @ Y).mT
    energies = left.square().sum(0).double().sort(descending=True).values
    # Norms of rows, then their sum in float64: one long sum of float32 squares would drift.
    rest = W.norm(dim=1).double().square().sum() - energies.sum()
    if rest < 1e-3 * RESOLVED[W.dtype] * energies[0]:  # a sketch is exact to 0.1 % only
        return _balanced(*_truncated(W, rank))
    return _balanced(*((left, right) if A is W else (right.mT, left.mT)), torch.cat([energies, rest[None]]))


def _filtered(H: Tensor, Q: Tensor, degree: int) -> Tensor:
    """An orthonormal basis of T(H) Q, by the recurrence T_k+1 = 2 x T_k - T_k-1, x = 2 H / end - 1."""
    if degree < 1:
        return Q
    HQ = H @ Q
    ritz = torch.linalg.eigvalsh(Q.mT @ HQ)
    end = max(ritz[0].item(), ritz[-1].item() * torch.finfo(H.dtype).eps, torch.finfo(H.dtype).tiny)
    before, now, x = Q, HQ * (2 / end) - Q, H * (2 / end)
    x.diagonal().sub_(1)
    for _ in range(degree - 1):
        # Columns grow apart by far where eigenvalues do: the same change of basis in both keeps the recurrence.
        if not now.norm() < 1e4 * Q.shape[1] ** 0.5:
            now, R = torch.linalg.qr(now)
            before = torch.linalg.solve_triangular(R, before, upper=True, left=False)
        before, now = now, torch.addmm(before, x, now, beta=-1, alpha=2)
    return torch.linalg.qr(now).Q


def _random(W: Tensor, rank: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Factors for training from scratch, whose product varies as W does (see `LED.reset_parameters`)."""
    m, n = W.shape
    std = W.square().mean().sqrt()
    encoder = torch.randn(rank, n, dtype=W.dtype, device=W.device, generator=generator) * n**-0.5
    decoder = torch.randn(m, rank, dtype=W.dtype, device=W.device, generator=generator) * std * (n / rank) ** 0.5
    return decoder, encoder


_DRAWN: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {"random": _random, "nmf": nmf, "semi_nmf": semi_nmf}
