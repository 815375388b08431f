"""Sinusoidal positions. Vaswani 2017, arXiv:1706.03762, 3.5: sin(i / 10000^(2c/e)) and the cosine of it, by columns.

No parameters; positions of any size.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from greenformers.position._contract import Position


class Sinusoidal(Position):
    """Waves added to the embedding, whose tokens are multiplied by sqrt(e) first (3.4)."""

    scales_tokens = True

    def embed(  # noqa: D102
        self, x: Float[Tensor, "B N e"], positions: Int[Tensor, "B N"] | None = None
    ) -> Float[Tensor, "B N e"]:
        positions = torch.arange(x.shape[1], device=x.device) if positions is None else positions
        return x + sinusoidal(positions, x.shape[2], x.dtype)


def sinusoidal(
    positions: Int[Tensor, "... N"], width: int, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "... N e"]:
    """Sine in even columns, cosine in odd ones, wavelengths from 2 pi to 10000 x 2 pi. Vaswani 2017, 3.5.

    Angles are in float32 at least: neighbours far from the beginning would have the same one.
    """
    wide = torch.promote_types(dtype, torch.float32)
    column = torch.arange(width, device=positions.device)
    rate = 10000.0 ** (-(column // 2 * 2).to(wide) / width)
    angle = positions[..., None].to(wide) * rate
    return torch.where(column % 2 == 0, angle.sin(), angle.cos()).to(dtype)
