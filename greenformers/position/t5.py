"""T5's relative positions. Raffel 2019, arXiv:1910.10683, 2.1: score_ij + b_h[bucket(i - j)], b learned.

Small distances have a bucket each, larger ones share buckets that grow as their logarithm, up to `farthest`. All
layers share b. (T5 does not divide q k by sqrt(D); here it is divided, which a factor in the weights of q undoes.)
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from greenformers.position._contract import Place, Position


class T5(Position):
    """A learned number for each head and bucket of distances, added to the scores.

    Args:
        place: Sizes of the network; the number H of heads is read, and whether they are causal: if not, half of the
            buckets are for keys ahead of the query.
        buckets: Number of buckets, half of which are for one distance each.
        farthest: Distance from which on all share the last bucket.

    Attributes:
        biases: The biases b (buckets, H).

    Raises:
        ValueError: An option is out of range.
    """

    acts = "scores"

    def __init__(self, place: Place, *, buckets: int = 32, farthest: int = 128) -> None:
        super().__init__(place)
        sides = 1 if place.causal else 2
        if buckets < 2 * sides or buckets % sides:
            raise ValueError(f"buckets must be {'even and ' if sides == 2 else ''}at least {2 * sides}, got {buckets}")
        if farthest <= buckets // sides // 2:
            raise ValueError(f"farthest must be above {buckets // sides // 2}, got {farthest}")
        self.buckets, self.farthest = buckets, farthest
        self.biases = nn.Parameter(torch.empty(buckets, place.heads))
        self.reset_parameters(place.width**-0.5)

    def reset_parameters(self, std: float) -> None:  # noqa: D102
        if not self.biases.is_meta:
            nn.init.normal_(self.biases, std=std)

    def shared(self, first: Position) -> None:  # noqa: D102
        assert isinstance(first, T5)
        self.biases, self.shared_parameters = first.biases, ("biases",)

    def bucket(self, distance: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """The bucket of each distance i - j; keys ahead have the second half, where they are seen."""
        count, start = self.buckets, torch.zeros_like(distance)
        if not self.place.causal:
            count //= 2
            start = torch.where(distance < 0, count, 0)
        far = distance.clamp(min=0) if self.place.causal else distance.abs()
        exact = count // 2
        growth = (count - exact) / math.log(self.farthest / exact)
        logarithmic = exact + ((far.clamp(min=1).float() / exact).log() * growth).long()
        return start + torch.where(far < exact, far, logarithmic.clamp(max=count - 1))

    def bias(self, distance: Int[Tensor, "N M"]) -> Float[Tensor, "H N M"]:  # noqa: D102
        return self.biases[self.bucket(distance)].permute(2, 0, 1)
