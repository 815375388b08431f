"""Learned positions. Gehring 2017, arXiv:1705.03122, 3.1; Devlin 2018: x_i + p_i, one vector p_i per position.

Parameters N e for the longest sequence N; longer ones have no positions.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from greenformers.position._contract import Place, Position


class Learned(Position):
    """One learned vector per position, added to the embedding.

    Args:
        place: Width and longest sequence.

    Attributes:
        weight: The vectors (N, e).
    """

    bounded = True

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.weight = nn.Parameter(torch.empty(place.max_len, place.width))
        self.reset_parameters(1.0)

    def reset_parameters(self, std: float) -> None:  # noqa: D102
        if not self.weight.is_meta:
            nn.init.normal_(self.weight, std=std)

    def embed(  # noqa: D102
        self, x: Float[Tensor, "B N e"], positions: Int[Tensor, "B N"] | None = None
    ) -> Float[Tensor, "B N e"]:
        own = self.weight[: x.shape[1]] if positions is None else nn.functional.embedding(positions, self.weight)
        return x + own
