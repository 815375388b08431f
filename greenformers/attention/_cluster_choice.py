"""Which positions a cluster takes, the w of largest product with its centroid; and the centroid of largest product.

The N c products are never in memory at once on a CPU: they are computed for some clusters at a time. Of long rows the w
largest are found in two steps: in groups of g positions, the w largest are in the w groups with the largest maxima, so
that w g positions are looked at; N / g + w g is least for g = sqrt(N / w).
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from greenformers.attention._aligned import in_parts
from greenformers.attention._workspace import Workspace

PRODUCTS = 2**20
"""Products that are computed at a time, which fit a cache of 4 MiB."""

LEAST = 4
"""Least size of a group for which two steps take less time than one."""

MANY = 2**16
"""Products from which on `_first_of_largest` takes less time than torch's maximum with its index."""

FAR = 1e30
"""Factor that makes any difference of two products larger than the number of clusters."""


@torch.no_grad()
def choose_positions(
    x: Float[Tensor, "B H N D"],
    centroids: Float[Tensor, "H c D"],
    mask: Bool[Tensor, "B N"] | None,
    window: int,
    *,
    in_order: bool = False,
    nearest: bool = False,
) -> tuple[Int[Tensor, "B H c w"], Int[Tensor, "B H N"] | None]:
    """The positions that each cluster takes, and the nearest centroid of every position where that is asked for.

    Args:
        x: Vectors of the positions.
        centroids: Centroids of each head.
        mask: True = may be taken (B, N); where fewer than w may, others fill up.
        window: Number w of positions of a cluster, at most N.
        in_order: Whether the positions of a cluster are in the order of their products, the largest first.
        nearest: Whether the nearest centroids are asked for.
    """
    B, H, N, _ = x.shape
    clusters = centroids.shape[1]
    centroids = centroids.to(x.dtype)
    if not in_parts(x):
        products = centroids @ x.mT  # (B, H, c, N)
        own = products.max(2).indices if nearest else None
        return _largest(_kept(products, mask), window, in_order), own
    places = torch.empty(B, H, clusters, window, dtype=torch.long)
    own = torch.empty(B, H, N, dtype=torch.long) if nearest else None
    rows = max(1, PRODUCTS // max(N, 1))
    heads, some = min(H, max(1, rows // clusters)), min(rows, clusters)
    room = Workspace(x, x.dtype)
    for b in range(B):
        for head in range(0, H, heads):
            group, top = slice(head, head + heads), None
            for first in range(0, clusters, some):
                part = slice(first, first + some)
                products = _products(centroids[group, part], x[b, group], room)  # (h, s, N)
                if own is not None:
                    top = _nearer(own[b, group], top, products, first, room)
                places[b, group, part] = _largest(_kept(products, mask if mask is None else mask[b]), window, in_order)
    return places, own


@torch.no_grad()
def nearest_centroids(x: Float[Tensor, "B H N D"], centroids: Float[Tensor, "H c D"]) -> Int[Tensor, "B H N"]:
    """The centroid with the largest product of every position."""
    B, H, N, _ = x.shape
    clusters = centroids.shape[1]
    centroids = centroids.to(x.dtype)
    if not in_parts(x):
        return (centroids @ x.mT).max(2).indices
    own = torch.empty(B, H, N, dtype=torch.long)
    positions = min(N, max(1, PRODUCTS // clusters))
    heads = min(H, max(1, PRODUCTS // clusters // max(N, 1)))
    room = Workspace(x, x.dtype)
    for b in range(B):
        for head in range(0, H, heads):
            group = slice(head, head + heads)
            for first in range(0, N, positions):
                part = slice(first, first + positions)
                _nearer(own[b, group, part], None, _products(centroids[group], x[b, group, part], room), 0, room)
    return own


def _products(centroids: Float[Tensor, "h s D"], x: Float[Tensor, "h N D"], room: Workspace) -> Float[Tensor, "h s N"]:
    """The products of centroids and vectors, until the next call."""
    out: Tensor = torch.bmm(centroids, x.mT, out=room("products", *centroids.shape[:2], x.shape[1]))
    return out


def _nearer(
    own: Int[Tensor, "h N"], top: Tensor | None, products: Float[Tensor, "h s N"], first: int, room: Workspace
) -> Tensor:
    """Write the numbers of the centroids with the largest product so far, and return these products."""
    wide = products.dtype in (torch.float32, torch.float64)
    most, at = _first_of_largest(products, room) if wide and products.numel() >= MANY else products.max(1)
    if top is None:
        own.copy_(at)
        return most
    own.copy_(torch.where(most > top, at + first, own))
    return torch.maximum(top, most)


def _first_of_largest(
    products: Float[Tensor, "h s N"], room: Workspace
) -> tuple[Float[Tensor, "h N"], Int[Tensor, "h N"]]:
    """The largest over dimension 1 and the first place that has it, as `max(1)`, which torch does not vectorise."""
    most, count = products.amax(1), products.shape[1]
    # 0 at the largest, far below elsewhere: of those at 0 the first has the largest number counted from behind.
    behind = torch.arange(count, 0, -1, dtype=products.dtype)[:, None]
    at = count - torch.sub(products, most[:, None], out=room("apart", *products.shape)).mul_(FAR).add_(behind).amax(1)
    return most, at.long().clamp_(0, count - 1)  # of what is no number there is no largest


def _kept(products: Float[Tensor, "... c N"], mask: Bool[Tensor, "... N"] | None) -> Float[Tensor, "... c N"]:
    """Products, the least where a position is masked."""
    if mask is None:
        return products
    return products.masked_fill(~(mask if mask.dim() == 1 else mask[:, None, None]), -torch.inf)


def _largest(products: Float[Tensor, "... N"], window: int, in_order: bool) -> Int[Tensor, "... w"]:
    """The places of the w largest products."""
    N = products.shape[-1]
    size = math.isqrt(N // window)
    if size < LEAST:
        return products.topk(window, sorted=in_order).indices
    groups = N // size
    # Group i: the positions i, i + n, i + 2 n, ...; n groups, and behind them what is left over.
    grouped, rest = products[..., : size * groups].unflatten(-1, (size, groups)), products[..., size * groups :]
    within = grouped.amax(-2).topk(window, sorted=False).indices  # (..., w)
    values = grouped.gather(-1, within[..., None, :].expand(*grouped.shape[:-1], window)).flatten(-2)
    values = torch.cat([values, rest], -1) if rest.shape[-1] else values
    at = values.topk(window, sorted=in_order).indices
    places = within.gather(-1, at % window) + groups * (at // window)
    return torch.where(at < size * window, places, at + size * (groups - window)) if rest.shape[-1] else places
