"""The vectors that centroids follow: their sums for each centroid, and how far they are from it."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from greenformers.attention._cluster_choice import nearest_centroids
from greenformers.attention._contract import exact


class Followed(NamedTuple):
    """Vectors that centroids follow.

    Attributes:
        x: Normalised queries or keys (b, h, N, D).
        mask: Which of them are kept (b, N).
        nearest: The nearest centroid of each (b, h, N), where it is known.
        heads: Which heads they are of.
        share: The share of each vector in the loss.
    """

    x: Float[Tensor, "b h N D"]
    mask: Bool[Tensor, "b N"] | None
    nearest: Int[Tensor, "b h N"] | None
    heads: slice
    share: Tensor | float


# Functions, as torch.compile does not know methods of named tuples.


@torch.no_grad()
def add_followed(some: Followed, sums: Float[Tensor, "H c D"], counts: Float[Tensor, "H c"], centroids: Tensor) -> None:
    """Add vectors to the sums of their nearest centroids, and their number to the counts."""
    x, nearest = some.x, _nearest(some, centroids)
    (number, width), clusters = x.shape[1::2], sums.shape[1]
    # Padding is added to a row of its own, which is dropped.
    if some.mask is not None:
        nearest = nearest.masked_fill(~some.mask[:, None], clusters)
    place = (nearest + torch.arange(number, device=x.device)[:, None] * (clusters + 1)).flatten()
    own = sums.new_zeros(number * (clusters + 1), width)
    own.index_add_(0, place, x.reshape(-1, width).to(sums.dtype))
    count = counts.new_zeros(len(own)).index_add_(0, place, torch.ones_like(place, dtype=counts.dtype))
    sums[some.heads] += own.view(number, -1, width)[:, :-1]
    counts[some.heads] += count.view(number, -1)[:, :-1]


def distance(some: Followed, centroids: Float[Tensor, "H c D"]) -> Float[Tensor, ""]:
    """The share of some vectors in the mean squared distance of all to their nearest centroids."""
    own = centroids[some.heads].to(some.x.dtype)
    own = own[torch.arange(some.x.shape[1], device=some.x.device)[:, None], _nearest(some, centroids)]
    far = exact(some.x - own).square().mean(-1)
    return (far if some.mask is None else far * some.mask[:, None]).sum() * some.share


def _nearest(some: Followed, centroids: Tensor) -> Tensor:
    return nearest_centroids(some.x, centroids[some.heads]) if some.nearest is None else some.nearest


def share_of_each(x: Float[Tensor, "B H N D"], mask: Bool[Tensor, "B N"] | None) -> Tensor | float:
    """One by the number of kept vectors."""
    if mask is None:
        return 1 / max(1, x.shape[0] * x.shape[1] * x.shape[2])
    return 1 / (x.shape[1] * mask.sum().clamp(min=1))
