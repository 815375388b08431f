"""Grids of few bits that weights are rounded to: w ~ s (q - z) with whole q from 0 to 2^N - 1. Survey, eq. 13.

| grid | s | z |
|---|---|---|
| affine | (max W - min W) / (2^N - 1) | round(-min W / s) |
| symmetric | 2 max abs(W) / (2^N - 1) | 2^(N - 1) |

Each row has a grid, or each group of so many neighbouring inputs of a row; or the whole weight has one. The range of an
affine grid is widened to hold 0, which is then one of its points, and weights that are all 0 take any step. Steps are
stored in float16, as multiples of one number of the weight, so that small ones do not fall below its range.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

PER = ("group", "row", "tensor")


@dataclass(frozen=True)
class Form:
    """What the grids of a weight have in common.

    Attributes:
        bits: N, from 1 to 8.
        per: What has a grid of its own: "group", "row" or "tensor".
        group: Inputs of a group; the last group of a row may have fewer.
        symmetric: Whether a grid is the same on both sides of 0.
    """

    bits: int
    per: str = "group"
    group: int = 64
    symmetric: bool = False

    @property
    def levels(self) -> int:
        """The greatest q."""
        return 2**self.bits - 1

    def group_of(self, n: int) -> int:
        """The number of inputs that share a grid, of n."""
        return min(self.group, n) if self.per == "group" else n


@dataclass(frozen=True)
class Grid:
    """The grids of a weight (m, n), G in a row.

    Attributes:
        form: What they have in common.
        unit: The number that steps are multiples of, () float32.
        steps: s / unit (m, G) or, of the whole weight, (1, 1); float16.
        zero: z, as many, uint8.
    """

    form: Form
    unit: Float[Tensor, ""]
    steps: Float[Tensor, "m G"]
    zero: Int[Tensor, "m G"]

    @classmethod
    def of(cls, W: Float[Tensor, "m n"], form: Form, unit: Float[Tensor, ""] | None = None) -> "Grid":
        """The grids of a weight, from its least and greatest values; by default in units of the largest step."""
        groups = W.split(form.group_of(W.shape[1]), dim=1)
        low, high = (torch.stack([of(part, 1) for part in groups], 1).float() for of in (torch.amin, torch.amax))
        if form.per == "tensor":
            low, high = low.amin().view(1, 1), high.amax().view(1, 1)
        low, high = low.clamp(max=0), high.clamp(min=0)
        if form.symmetric:
            high = torch.maximum(-low, high)
            low = -high
        scale = (high - low) / form.levels
        if unit is None:
            unit = scale.amax() if bool((scale > 0).any()) else scale.new_ones(())
        steps = (scale / unit).half()
        steps = steps.where(steps > 0, 1)
        if form.symmetric:
            zero = torch.full_like(steps, 2 ** (form.bits - 1))
        else:
            zero = (-low / (unit * steps.float())).round().clamp(max=form.levels)
        return cls(form, unit, steps, zero.to(torch.uint8))

    @property
    def scale(self) -> Float[Tensor, "m G"]:
        """The steps s, float32."""
        return self.unit * self.steps.float()

    def columns(self, start: int, end: int, n: int) -> tuple[Tensor, Tensor]:
        """The s and z of the columns from `start` to before `end` of n, each (m, end - start) or to be broadcast."""
        scale, zero = self.scale, self.zero.float()
        if scale.shape[1] == 1:
            return scale, zero
        at = torch.arange(start, end, device=scale.device) // self.form.group_of(n)
        return scale[:, at], zero[:, at]

    def round(self, W: Float[Tensor, "m n"]) -> Int[Tensor, "m n"]:
        """The nearest q of each weight, uint8."""
        scale, zero = self.columns(0, W.shape[1], W.shape[1])
        return nearest(W, scale, zero, self.form.levels).to(torch.uint8)

    def values(self, q: Int[Tensor, "m n"]) -> Float[Tensor, "m n"]:
        """The weight s (q - z), float32."""
        scale, zero = self.columns(0, q.shape[1], q.shape[1])
        return scale * (q.float() - zero)


def nearest(W: Tensor, scale: Tensor, zero: Tensor, levels: int) -> Tensor:
    """The q of weights, as whole floating-point numbers."""
    return ((W / scale).round() + zero).clamp(0, levels)
