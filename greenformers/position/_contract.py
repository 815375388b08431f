"""The contract of the position slot: how the positions of tokens enter a network."""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


@dataclass(frozen=True)
class Place:
    """Sizes of the network around a kind of position, which it is built with.

    Attributes:
        width: Width e of the embedding that positions are added to.
        heads: Number H of heads.
        head_dim: Width D of the queries and keys of a head.
        max_len: Length of the longest sequence.
        causal: Whether a position sees only positions up to itself.

    Raises:
        ValueError: A number is below 1.
    """

    width: int
    heads: int
    head_dim: int
    max_len: int
    causal: bool = False

    def __post_init__(self) -> None:
        for name in ("width", "heads", "head_dim", "max_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


class Rotation(NamedTuple):
    """Cosines and sines of the angles of positions, for queries and keys of all heads and layers.

    Attributes:
        cos: Cosines (b, 1, N, r), b = 1 or B, for the r columns of a head that are turned.
        sin: Sines, of the same shape; negated for the first column of each pair, from which the second is subtracted.
    """

    cos: Float[Tensor, "b 1 N r"]
    sin: Float[Tensor, "b 1 N r"]


class Position(nn.Module):
    """Base of every kind of position. Positions count kept tokens from 0, so that padding moves nothing.

    A kind changes what goes into the first layer (`embed`), turns queries and keys of all layers (`rotation`, `turn`),
    or adds a bias that depends on distances to the scores of all layers (`bias`, `added`) and to the values (`values`).
    """

    acts: ClassVar[Literal["embedding", "rotation", "scores"]] = "embedding"
    """What it changes: the embedding, queries and keys (by a rotation), or scores."""

    asks_query: ClassVar[bool] = False
    """For kinds that act on scores: whether the bias depends on the query, so that it has `added` and no `bias`."""

    has_values: ClassVar[bool] = False
    """For kinds that act on scores: whether `values` adds vectors of distances to the values."""

    shared_parameters: tuple[str, ...] = ()
    """Names of the parameters that `shared` took from layer 0: one tensor under several names in a checkpoint."""

    bounded: ClassVar[bool] = False
    """Whether positions from `max_len` on do not exist."""

    scales_tokens: ClassVar[bool] = False
    """Whether embeddings of tokens are multiplied by sqrt(e) before `embed`, so that positions do not outweigh them."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place

    def embed(self, x: Float[Tensor, "B N e"], positions: Int[Tensor, "B N"] | None = None) -> Float[Tensor, "B N e"]:
        """Add the vectors of positions to embeddings x; positions None: 0 to N - 1."""
        raise NotImplementedError(f"{type(self).__name__} is not added to embeddings")

    def rotation(self, positions: Int[Tensor, "b N"], dtype: torch.dtype = torch.float32) -> Rotation:
        """Cosines and sines of positions, in float32, or in float64 where that is the dtype of the queries."""
        raise NotImplementedError(f"{type(self).__name__} turns no queries and keys")

    def turn(self, x: Float[Tensor, "B H N D"], rotation: Rotation) -> Float[Tensor, "B H N D"]:
        """Queries or keys x, rotated by their positions."""
        raise NotImplementedError(f"{type(self).__name__} turns no queries and keys")

    def bias(self, distance: Int[Tensor, "N M"]) -> Float[Tensor, "H N M"]:
        """The bias of the scaled score of query i and key j, by their distance i - j."""
        raise NotImplementedError(f"{type(self).__name__} has nothing for a distance alone")

    def added(self, q: Float[Tensor, "B H N D"], keys: int) -> Float[Tensor, "b H N M"]:
        """The bias of the scaled scores of queries, at the last N of M positions, and all keys; b = 1 or B."""
        return self.bias(distances(q.shape[2], keys, q.device))[None].to(q.dtype)

    def of_distances(
        self, falling: Int[Tensor, " t"]
    ) -> tuple[Float[Tensor, "h t D"] | None, Float[Tensor, "H t"] | None]:
        """Vectors, of each head or for all, and biases: a scaled score has D^-1/2 q vectors_t + bias_t added to it."""
        return None, self.bias(falling[None])[:, 0]

    def values(self, weights: Float[Tensor, "B H N M"]) -> Float[Tensor, "B H N D"]:
        """The sum of vectors of distances by attention weights, to be added to the weighted sum of values."""
        raise NotImplementedError(f"{type(self).__name__} has no values of distances")

    def shared(self, first: "Position") -> None:
        """Take from `first`, the same kind in layer 0, the parameters all layers share (none here)."""

    def reset_parameters(self, std: float) -> None:
        """Draw its parameters (none here) anew, with this standard deviation."""


def falling(queries: int, keys: int, device: torch.device | None = None, *, causal: bool) -> Int[Tensor, " t"]:
    """All distances i - j that a query sees, from the farthest key behind on: query i, key j at N - 1 - i + j."""
    return torch.arange(keys - 1, -1 if causal else -queries, -1, device=device)


def distances(queries: int, keys: int, device: torch.device | None = None) -> Int[Tensor, "N M"]:
    """The distance i - j of each query, at the last N of M positions, and each key."""
    positions = torch.arange(keys, device=device)
    return positions[keys - queries :, None] - positions
