"""Product quantisation of second order: vectors that come later make up for what earlier ones lose.

GPTVQ (van Baalen 2024, arXiv:2402.15319). With H = C + 0.01 mean(diag C) I for the products of inputs C, and U upper
triangular with H^-1 = U^T U, blocks of d inputs of W (m, n) are replaced by centroids one after the other:

    e_b = (w_b - c_b) U_bb^-1,  w_k -= e_b U_bk for later k,

where c_b is nearest to w_b by (U_bb^T U_bb)^-1, which measures what the later ones cannot make up for; k-means is by
the same metric. Blocks whose inputs are large come first. The centroids are then those that lose least of the output
with these codes, tr (W - W^) H (W - W^)^T, by conjugate gradients.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from greenformers.solve.codebook import blocks, joined, kmeans, nearest
from greenformers.solve.sparsify import damped, inverse_factor

ITERATIONS = 20
"""Steps of conjugate gradients."""


def second_order(
    W: Float[Tensor, "m n"], C: Float[Tensor, "n n"], d: int, K: int, *, seed: int = 0
) -> tuple[Int[Tensor, "m B"], Float[Tensor, "K d"]]:
    """The codes of the vectors of a weight, and its centroids.

    Args:
        W: Weights.
        C: Sum of the products of inputs.
        d: Inputs of a vector.
        K: Number of centroids.
        seed: Seed of k-means.

    Raises:
        ValueError: W or C hold values that are not finite.
    """
    _check(W, C)
    n = W.shape[1]
    W, H = W.to(C.dtype), damped(C)
    parts = list(torch.arange(n, device=W.device).split(d))
    sizes = torch.stack([H.diagonal()[part].sum() for part in parts])
    order = sizes.argsort(descending=True, stable=True).tolist()
    columns = torch.cat([parts[b] for b in order])
    U = inverse_factor(C[columns][:, columns])
    ends = torch.tensor([len(parts[b]) for b in order]).cumsum(0).tolist()
    own = [U[end - len(parts[b]) : end, end - len(parts[b]) : end] for b, end in zip(order, ends, strict=True)]
    metric = W.new_zeros(len(parts), d, d)
    for b, factor in zip(order, own, strict=True):
        metric[b] = _filled((factor.T @ factor).inverse(), d)
    centroids = kmeans(blocks(W, d), K, metric=metric, seed=seed)
    codes = torch.zeros(len(W), len(parts), dtype=torch.uint8, device=W.device)
    left = W[:, columns].clone()
    for b, end, factor in zip(order, ends, own, strict=True):
        start = end - len(factor)
        w = left[:, start:end]
        codes[:, b] = nearest(blocks(w, d), centroids, metric[b : b + 1])[:, 0]
        gone = w - joined(codes[:, b : b + 1], centroids, len(factor))
        errors = torch.linalg.solve_triangular(factor, gone, upper=True, left=False)
        left[:, end:] -= errors @ U[start:end, end:]
    return codes, fitted(W, H, codes, centroids)


def fitted(
    W: Float[Tensor, "m n"], H: Float[Tensor, "n n"], codes: Int[Tensor, "m B"], centroids: Float[Tensor, "K d"]
) -> Float[Tensor, "K d"]:
    """The centroids c that lose least, tr (W - W^) H (W - W^)^T, with these codes; a step of each at a time.

    A c = b with A c = the sums over the vectors of each code of the rows of W^ H, and b the same of W H.
    """
    n, (K, d) = W.shape[1], centroids.shape
    at = codes.long().flatten()

    def gathered(rows: Tensor) -> Tensor:
        return W.new_zeros(K, d).index_add_(0, at, blocks(rows @ H, d).flatten(0, 1))

    residual = gathered(W - joined(codes, centroids, n))
    x, p, square = centroids.clone(), residual.clone(), residual.square().sum()
    for _ in range(ITERATIONS):
        if square == 0:
            break
        Ap = gathered(joined(codes, p, n))
        alpha = square / (p * Ap).sum()
        x, residual = x + alpha * p, residual - alpha * Ap
        before, square = square, residual.square().sum()
        p = residual + square / before * p
    return x


def _check(W: Tensor, C: Tensor) -> None:
    if not (W.isfinite().all() and C.isfinite().all()):
        raise ValueError("a weight or the inputs of calibration hold values that are not finite")


def _filled(metric: Tensor, d: int) -> Tensor:
    """A metric (r, r) for vectors of d, of which those beyond r hardly count."""
    out = 1e-6 * metric.diagonal().mean() * torch.eye(d, dtype=metric.dtype, device=metric.device)
    out[: len(metric), : len(metric)] = metric
    return out


def weighted(
    W: Float[Tensor, "m n"], C: Float[Tensor, "n n"], d: int, K: int, *, seed: int = 0
) -> tuple[Int[Tensor, "m B"], Float[Tensor, "K d"]]:
    """The codes and centroids of k-means by the products of the inputs of each block; arguments as `second_order`."""
    _check(W, C)
    W, H = W.to(C.dtype), damped(C)
    parts = torch.arange(W.shape[1], device=W.device).split(d)
    metric = torch.stack([_filled(H[part][:, part], d) for part in parts])
    w = blocks(W, d)
    centroids = kmeans(w, K, metric=metric, seed=seed)
    return nearest(w, centroids, metric), centroids
