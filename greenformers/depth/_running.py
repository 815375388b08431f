"""The positions of a batch that still go on: of some of its sequences, some positions each."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Running(NamedTuple):
    """Positions of a batch (B, N) that are computed, as b sequences of S places; a shorter one has empty places.

    Attributes:
        rows: The sequences that have such a position (b,).
        columns: Their positions in order (b, S); 0 in empty places.
        mask: True = a position (b, S), False = an empty place.
    """

    rows: Int[Tensor, " b"]
    columns: Int[Tensor, "b S"]
    mask: Bool[Tensor, "b S"]

    @classmethod
    def of(cls, active: Bool[Tensor, "B N"]) -> "Running":
        """The positions that are True."""
        rows = active.any(1).nonzero()[:, 0]
        chosen = active[rows]
        lengths = chosen.sum(1)
        most = int(lengths.max()) if len(rows) else 0
        mask = torch.arange(most, device=active.device) < lengths[:, None]
        # A stable sort keeps the order of positions.
        columns = (~chosen).to(torch.uint8).argsort(dim=1, stable=True)[:, :most]
        return cls(rows, columns.masked_fill(~mask, 0), mask)

    @property
    def is_empty(self) -> bool:
        """Whether there is no position."""
        return len(self.rows) == 0

    def places(self, length: int) -> Int[Tensor, " T"]:
        """Their T indices in a batch of N = `length` positions a sequence whose sequences stand in one row."""
        return (self.rows[:, None] * length + self.columns)[self.mask]

    def take(self, x: Float[Tensor, "B N *r"]) -> Float[Tensor, "b S *r"]:
        """What a tensor has at these positions; empty places have that of position 0."""
        return x[self.rows[:, None], self.columns]

    def put(self, x: Float[Tensor, "B N *r"], new: Float[Tensor, "b S *r"]) -> Float[Tensor, "B N *r"]:
        """A copy of x with `new` at these positions."""
        flat = x.flatten(0, 1).index_copy(0, self.places(x.shape[1]), new[self.mask].to(x.dtype))
        return flat.view_as(x)
