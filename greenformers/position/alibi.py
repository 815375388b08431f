"""ALiBi. Press 2021, arXiv:2108.12409, 3: score_ij = q_i k_j / sqrt(D) - m_h |i - j|, one slope m_h a head.

No parameters; sequences may be longer than those of training.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from greenformers.position._contract import Place, Position


class Alibi(Position):
    """Scores that fall with the distance, at a rate of its own in each head.

    Slopes are 2^(-8h/H) for h = 1..H where H is a power of two; else those of the power of two below, and every second
    one of the power above.

    Args:
        place: Sizes of the network; the number of heads is read.
    """

    acts = "scores"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.slopes = slopes(place.heads)

    def bias(self, distance: Int[Tensor, "N M"]) -> Float[Tensor, "H N M"]:  # noqa: D102
        rates = torch.tensor(self.slopes, dtype=torch.float32, device=distance.device)
        return -rates[:, None, None] * distance.abs()


def slopes(heads: int) -> list[float]:
    """The slope m_h of each head, in descending order."""
    below = 2 ** math.floor(math.log2(heads))
    powers = [2 ** (-8 * h / below) for h in range(1, below + 1)]
    return powers + [2 ** (-4 * h / below) for h in range(1, 2 * (heads - below), 2)]
