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
        head_dim: D of the queries and keys that it turns.
        max_len: longest sequence.

    Raises:
        ValueError: a number is below 1.
    """

    width: int
    head_dim: int
    max_len: int

    def __post_init__(self) -> None:
        for name in ("width", "head_dim", "max_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


class Rotation(NamedTuple):
    """Angles of positions, for queries and keys of all heads and layers.

    Attributes:
        cos: cosines (b, 1, N, r), b = 1 or B, for the r columns of a head that are turned.
        sin: sines, alike.
    """

    cos: Float[Tensor, "b 1 N r"]
    sin: Float[Tensor, "b 1 N r"]


class Position(nn.Module):
    """Base of every kind of position. Positions count kept tokens from 0, so that padding moves nothing.

    A kind either changes what goes into the first layer (`embed`), or turns queries and keys of all layers
    (`rotation`, `turn`).
    """

    acts: ClassVar[Literal["embedding", "rotation"]] = "embedding"
    """Where it acts: on the embedding, by `embed`; or on queries and keys, by `rotation` and `turn`."""

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

    def reset_parameters(self, std: float) -> None:
        """Draw its parameters anew (none here), with this standard deviation."""
