"""The contract of the position slot: how a network learns where its tokens stand."""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


@dataclass(frozen=True)
class Place:
    """What a kind of position needs to know of the network around it.

    Attributes:
        width: e of the embedding it is added to.
        heads: H, number of heads.
        head_dim: D of the queries and keys that it turns.
        max_len: longest sequence.
        causal: a position sees only positions up to itself.

    Raises:
        ValueError: a number is below 1.
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
    """Angles of positions, for queries and keys of all heads and layers.

    Attributes:
        cos: cosines (b, 1, N, r), b = 1 or B, for the r columns of a head that are turned.
        sin: sines, alike; negative ones for the first column of each pair, which the second is taken from.
    """

    cos: Float[Tensor, "b 1 N r"]
    sin: Float[Tensor, "b 1 N r"]


class Position(nn.Module):
    """Base of every kind of position. Positions count kept tokens from 0, so that padding moves nothing.

    A kind changes what goes into the first layer (`embed`), turns queries and keys of all layers (`rotation`, `turn`),
    or adds to the scores of all layers what distances say (`bias`, `added`) and to what is mixed (`values`).
    """

    acts: ClassVar[Literal["embedding", "rotation", "scores"]] = "embedding"
    """Where it acts: on the embedding, on queries and keys, or on scores."""

    asks_query: ClassVar[bool] = False
    """Of those that act on scores, whether what is added depends on the query: it has `added`, and no `bias`."""

    has_values: ClassVar[bool] = False
    """Of those that act on scores, whether distances are mixed as values are, by `values`."""

    shared_parameters: tuple[str, ...] = ()
    """Parameters that `shared` took from layer 0: one tensor under several names in a checkpoint."""

    bounded: ClassVar[bool] = False
    """Whether there are no positions from `max_len` on."""

    scales_tokens: ClassVar[bool] = False
    """Whether embeddings of tokens are multiplied by the root of their width before `embed`, so as not to be lost."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place

    def embed(self, x: Float[Tensor, "B N e"], positions: Int[Tensor, "B N"] | None = None) -> Float[Tensor, "B N e"]:
        """Vectors of tokens with their positions; None: 0 to N - 1."""
        raise NotImplementedError(f"{type(self).__name__} is not added to embeddings")

    def rotation(self, positions: Int[Tensor, "b N"], dtype: torch.dtype = torch.float32) -> Rotation:
        """The angles of positions, in float32, or float64 where that is the type of the queries."""
        raise NotImplementedError(f"{type(self).__name__} turns no queries and keys")

    def turn(self, x: Float[Tensor, "B H N D"], rotation: Rotation) -> Float[Tensor, "B H N D"]:
        """Queries or keys, turned by their positions."""
        raise NotImplementedError(f"{type(self).__name__} turns no queries and keys")

    def bias(self, distance: Int[Tensor, "N M"]) -> Float[Tensor, "H N M"]:
        """What is added to the scaled score of a query and a key, by i - j, how far the key is behind the query."""
        raise NotImplementedError(f"{type(self).__name__} has nothing for a distance alone")

    def added(self, q: Float[Tensor, "B H N D"], keys: int) -> Float[Tensor, "b H N M"]:
        """What is added to the scaled scores of queries, the last N of M positions, and all keys; b = 1 or B."""
        return self.bias(distances(q.shape[2], keys, q.device))[None].to(q.dtype)

    def values(self, weights: Float[Tensor, "B H N M"]) -> Float[Tensor, "B H N D"]:
        """What the weights of keys mix by their distances, to be added to the mixture of their values."""
        raise NotImplementedError(f"{type(self).__name__} has no values of distances")

    def shared(self, first: "Position") -> None:
        """Take from `first`, the same kind in layer 0, the parameters all layers share (none here)."""

    def reset_parameters(self, std: float) -> None:
        """Draw its parameters anew (none here), with this standard deviation."""


def distances(queries: int, keys: int, device: torch.device | None = None) -> Int[Tensor, "N M"]:
    """I - j of each query, the last N of M positions, and each key."""
    positions = torch.arange(keys, device=device)
    return positions[keys - queries :, None] - positions
