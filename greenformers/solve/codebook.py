"""Codebooks of weights: k-means of vectors of neighbouring inputs, each measured by what it does to the output.

A weight W (m, n) is cut into vectors of d neighbouring inputs of a row, w_ib for block b, and each is replaced by one
of K centroids. With a metric M_b (d, d) for each block, Lloyd's algorithm takes in turn

    the centroid k of each vector with the least (w_ib - c_k)^T M_b (w_ib - c_k),
    c_k = (sum of M_b)^-1 sum of M_b w_ib over the vectors of k.

For M_b the products of the inputs of block b, this is the k-means of iPQ (Stock 2020, arXiv:1907.05686), which takes
the mean over all blocks for each; for M_b = I it is plain k-means. A centroid without vectors splits the largest
cluster.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

STEPS = 20
"""Steps of Lloyd's algorithm."""

SPLIT = 1e-3
"""How far a centroid without vectors is put from the one whose vectors it is to share, as a share of its size."""

PART = 2**18
"""Distances that are held at once: as many as a cache holds."""

SAMPLE = 1024
"""Vectors for each centroid that k-means looks at, of those that there are."""


def blocks(W: Float[Tensor, "m n"], d: int) -> Float[Tensor, "m B d"]:
    """The vectors of a weight; the last ones are filled up with 0."""
    return torch.nn.functional.pad(W, (0, -W.shape[1] % d)).unflatten(1, (-1, d))


def joined(codes: Int[Tensor, "m B"], centroids: Float[Tensor, "K d"], n: int) -> Float[Tensor, "m n"]:
    """The weight that codes stand for."""
    return centroids[codes.long()].flatten(1)[:, :n]


def kmeans(
    w: Float[Tensor, "m B d"], K: int, *, metric: Float[Tensor, "B d d"] | None = None, seed: int = 0,
    steps: int = STEPS,
) -> Float[Tensor, "K d"]:  # fmt: skip
    """The centroids of vectors, after `steps` of Lloyd's algorithm from vectors drawn at random.

    Of many vectors those of some rows are looked at, `SAMPLE` for each centroid.

    Args:
        w: Vectors, B of each row.
        K: Number of centroids.
        metric: Positive definite M_b; by default I.
        seed: Seed of the draw.
        steps: Number of steps.
    """
    draw = torch.Generator().manual_seed(seed)
    rows = -(-SAMPLE * K // w.shape[1])
    if rows < len(w):
        w = w[torch.randperm(len(w), generator=draw)[:rows].sort().values.to(w.device)]
    flat = w.flatten(0, 1)
    drawn = torch.randperm(len(flat), generator=draw)[:K].to(w.device)
    centroids = flat[drawn.repeat(-(-K // len(drawn)))[:K]].clone()
    for _ in range(steps):
        centroids = moved(w, nearest(w, centroids, metric), centroids, metric)
    return centroids


def nearest(
    w: Float[Tensor, "m B d"], centroids: Float[Tensor, "K d"], metric: Float[Tensor, "B d d"] | None = None
) -> Int[Tensor, "m B"]:
    """The nearest centroid of each vector, uint8."""
    if metric is None:
        seen, each = w.reshape(-1, 1, w.shape[2]), centroids[None]
    else:
        factor = torch.linalg.cholesky(metric)  # M = L L^T, so w^T M w = |w^T L|^2
        seen, each = (w.transpose(0, 1) @ factor).transpose(0, 1), centroids @ factor
    sizes, rows = each.square().sum(-1)[:, None], max(1, PART // each[..., 0].numel())
    parts = [torch.baddbmm(sizes, part.transpose(0, 1), each.mT, alpha=-2).argmin(-1).T for part in seen.split(rows)]
    return torch.cat(parts).view(w.shape[:2]).to(torch.uint8)


def moved(
    w: Float[Tensor, "m B d"], codes: Int[Tensor, "m B"], centroids: Float[Tensor, "K d"],
    metric: Float[Tensor, "B d d"] | None = None,
) -> Float[Tensor, "K d"]:  # fmt: skip
    """The centroids that fit the vectors of each code best; one without vectors goes next to that with most."""
    (K, d), B = centroids.shape, w.shape[1]
    at = (codes.long() * B + torch.arange(B, device=w.device)).flatten()
    sums = w.new_zeros(K * B, d).index_add_(0, at, w.flatten(0, 1)).view(K, B, d)
    counts = torch.bincount(at, minlength=K * B).view(K, B).to(w.dtype)
    total = counts.sum(1)
    if metric is None:
        new = sums.sum(1) / total.clamp(min=1)[:, None]
    else:
        A, b = torch.einsum("kb,bde->kde", counts, metric), torch.einsum("kbd,bde->ke", sums, metric)
        new = torch.linalg.solve(A.where((total > 0)[:, None, None], torch.eye(d, dtype=w.dtype, device=w.device)), b)
    new = new.where((total > 0)[:, None], centroids)
    empty = (total == 0).nonzero()[:, 0]
    fullest = total.topk(K).indices[: len(empty)]
    fullest = fullest[total[fullest] > 1]
    new[empty[: len(fullest)]] = new[fullest] * (1 + SPLIT)
    return new
