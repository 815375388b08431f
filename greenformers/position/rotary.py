"""Rotary positions. Su 2021, arXiv:2104.09864, eq. 34: pairs of columns of q and k turn by i base^(-2c/R).

q_i^T k_j then depends on the positions by i - j alone. No parameters; values are not turned.
Longer sequences than those of training: positions divided by a factor (Chen 2023, arXiv:2306.15595), or the base
multiplied by factor^(R/(R - 2)), which leaves fast angles as they were.
"""

from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from greenformers.position._contract import Place, Position, Rotation

SCALINGS = ("linear", "base")


def reference(x: Float[Tensor, "... N D"], positions: Int[Tensor, " N"], base: float) -> Float[Tensor, "... N D"]:
    """Column c and column c + D/2 as the parts of a complex number, times e^(i base^(-2c/D) sqrt(-1))."""
    half = x.shape[-1] // 2
    rates = base ** (-torch.arange(half, dtype=x.dtype) / half)
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(
        torch.ones_like(rates), positions[:, None] * rates
    )
    return torch.cat([turned.real, turned.imag], -1)


class Rotary(Position):
    """Queries and keys, rotated by their positions before their product.

    Args:
        place: Sizes of the network; the width D of a head is read.
        base: Base of the wavelengths, which go from 2 pi to 2 pi base.
        share: Share of the columns of a head that are rotated, the first ones; in (0, 1].
        interleaved: Whether pairs are neighbours, (2c, 2c + 1), as in the paper; else (c, c + R/2), as in Llama, which
            differs only by the order of the rows of the projections.
        factor: Ratio of the longest sequence to the longest one in training, at least 1.
        scaling: How the factor is applied: "linear" divides positions by it, "base" multiplies the base.

    Raises:
        ValueError: An option is out of range, or fewer than two columns would be rotated.
    """

    acts = "rotation"

    def __init__(
        self, place: Place, *, base: float = 10000.0, share: float = 1.0, interleaved: bool = False,
        factor: float = 1.0, scaling: str = "linear",
    ) -> None:  # fmt: skip
        super().__init__(place)
        if not base > 1:
            raise ValueError(f"base must be above 1, got {base}")
        if not 0 < share <= 1:
            raise ValueError(f"share must be in (0, 1], got {share}")
        if not factor >= 1:
            raise ValueError(f"factor must be at least 1, got {factor}")
        if scaling not in SCALINGS:
            raise ValueError(f"scaling must be one of {', '.join(SCALINGS)}; got {scaling!r}")
        turned = int(share * place.head_dim) // 2 * 2
        if turned < 2 or (scaling == "base" and factor > 1 and turned == 2):
            raise ValueError(f"share must leave pairs of columns to turn, of {place.head_dim} it leaves {turned}")
        self.base, self.share, self.interleaved, self.factor, self.scaling = base, share, interleaved, factor, scaling
        self.turned = turned

    def rotation(  # noqa: D102
        self, positions: Int[Tensor, "b N"], dtype: torch.dtype = torch.float32
    ) -> Rotation:
        # In half precision positions beyond some hundreds would be rounded to each other.
        dtype = torch.float64 if dtype == torch.float64 else torch.float32
        R, base, factor = self.turned, self.base, self.factor
        if self.scaling == "base" and factor > 1:
            base, factor = base * factor ** (R / (R - 2)), 1.0
        rates = base ** (torch.arange(0, -R, -2, device=positions.device, dtype=dtype) / R)
        rates = rates if factor == 1 else rates / factor
        angles = positions[:, None, :, None] * rates
        both = partial(torch.stack, dim=-1) if self.interleaved else partial(torch.cat, dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return Rotation(both([cos, cos]).flatten(3), both([-sin, sin]).flatten(3))

    def turn(self, x: Float[Tensor, "B H N D"], rotation: Rotation) -> Float[Tensor, "B H N D"]:  # noqa: D102
        cos, sin = rotation if rotation.cos.dtype == x.dtype else (part.to(x.dtype) for part in rotation)
        part, rest = (x, None) if self.turned == x.shape[3] else x.split([self.turned, x.shape[3] - self.turned], 3)
        if self.interleaved:
            partners = part.unflatten(3, (-1, 2)).flip(-1).flatten(3)
        else:
            first, second = part.chunk(2, 3)
            partners = torch.cat([second, first], 3)
        out = (part * cos).addcmul_(partners, sin)
        return out if rest is None else torch.cat([out, rest], 3)
