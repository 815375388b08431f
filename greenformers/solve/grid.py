"""Grids of few bits that weights are rounded to: w ~ s (q - z) with whole q from 0 to 2^N - 1. Survey, eq. 13.

| grid | q | s | z |
|---|---|---|---|
| affine | 0 to 2^N - 1 | (max W - min W) / (2^N - 1) | round(-min W / s) |
| symmetric | 0 to 2^N - 1 | 2 max abs(W) / (2^N - 1) | 2^(N - 1) |
| ternary, 1.58 bits | 0, 1, 2: -a, 0, a | a = mean of the k largest abs(W) | 1 |
| binary, 1 bit | 0, 1: -a, a | 2 a, a = mean abs(W) | 1/2 |

Each row has a grid, or each group of so many neighbouring inputs of a row; or the whole weight has one. The range of an
affine grid is widened to hold 0, which is then one of its points, and weights that are all 0 take any step. Steps are
stored in float16, as multiples of one power of 2 of the weight, so that small ones do not fall below its range. Those
of affine grids are rounded down, so that both ends of the range are reached, and what was rounded has the same grid.

Ternary weights (TWN, Li 2016, arXiv:1605.04711) and binary ones (XNOR-Net, Rastegari 2016, arXiv:1603.05279) are those
nearest to W in the norm. For ternary ones k is what makes (sum of the k largest abs(W))^2 / k largest, which TWN takes
to be the number of weights above 0.7 mean abs(W), true of some distributions only; weights above a / 2 are then not 0.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from greenformers._torch import is_fake

PER = ("group", "row", "tensor")

BINARY, TERNARY = 1, 1.58
"""Bits of weights with two and with three values."""

NARROWEST, NARROWER = 0.4, 0.05
"""The narrowest range that is tried, as a share of the whole one, and by how much each is narrower than the last."""

CHUNK = 2**20
"""Numbers that are rounded, or made again, at once: few enough that their memory is used again."""

BITS = (BINARY, TERNARY, 2, 3, 4, 5, 6, 7, 8)


@dataclass(frozen=True)
class Form:
    """What the grids of a weight have in common.

    Attributes:
        bits: N: 1, 1.58 or from 2 to 8.
        per: What has a grid of its own: "group", "row" or "tensor".
        group: Inputs of a group; the last group of a row may have fewer.
        symmetric: Whether a grid is the same on both sides of 0, as those below 2 bits are.

    Raises:
        ValueError: Below 2 bits a form is not symmetric.
    """

    bits: float
    per: str = "group"
    group: int = 64
    symmetric: bool = False

    def __post_init__(self) -> None:
        if self.bits < 2 and not self.symmetric:
            raise ValueError(f"grids of {self.bits:g} bits are symmetric")

    @property
    def levels(self) -> int:
        """The greatest q."""
        return levels(self.bits)

    @property
    def middle(self) -> float:
        """The z of symmetric grids."""
        return 0.5 if self.bits == BINARY else (self.levels + 1) // 2

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
        zero: z, as many, uint8; None where grids are symmetric.
    """

    form: Form
    unit: Float[Tensor, ""]
    steps: Float[Tensor, "m G"]
    zero: Int[Tensor, "m G"] | None

    @classmethod
    def of(
        cls, W: Float[Tensor, "m n"], form: Form, unit: Float[Tensor, ""] | None = None, *,
        felt: Float[Tensor, "n"] | None = None,
    ) -> "Grid":  # fmt: skip
        """The grids of a weight.

        Args:
            W: The weight.
            form: The form of its grids.
            unit: The number that steps are multiples of; by default see `unit_of`.
            felt: How much errors count, input by input: of narrower ranges, down to `NARROWEST` of the whole one, each
                grid has the one at which the sum of errors' squares is least. By default the range is the whole one.
        """
        parts = _parts(W.float(), form)
        low = torch.stack([part.amin(1) for part in parts], 1).clamp(max=0)
        if form.bits < 2:
            scale = torch.stack([_nearest_step(part.abs(), form.bits) for part in parts], 1)
        else:
            high = torch.stack([part.amax(1) for part in parts], 1).clamp(min=0)
            scale = (2 * torch.maximum(-low, high) if form.symmetric else high - low) / form.levels
        if unit is None:
            unit = unit_of(scale)
        steps = (scale / unit).half()
        if not form.symmetric:  # rounded down: of a step rounded up, a range from -k - 1/2 has one number fewer
            steps = (steps.view(torch.int16) - (unit * steps.float() > scale).short()).view(torch.float16)
        if form.bits != BINARY:  # which has no other way to be 0
            steps = steps.where(steps > 0, 1)
        zero = None
        if not form.symmetric:
            zero = (-low / (unit * steps.float())).round().clamp(max=form.levels).to(torch.uint8)
        grid = cls(form, unit, steps, zero)
        return grid if felt is None or form.bits < 2 else grid._narrowed(W.float(), felt.to(unit.dtype))

    @classmethod
    def stacked(cls, parts: "Sequence[Grid]") -> "Grid":
        """The grids of rows of which these are parts, with steps of one unit."""
        zeros = [part.zero for part in parts if part.zero is not None]
        steps = torch.cat([part.steps for part in parts])
        return replace(parts[0], steps=steps, zero=torch.cat(zeros) if zeros else None)

    def _narrowed(self, W: Tensor, felt: Tensor) -> "Grid":
        """The grids of narrower ranges, where these lose less."""
        best, least = self, self._lost(W, felt)
        for share in torch.arange(1 - NARROWER, NARROWEST, -NARROWER).tolist():
            steps = (self.steps.float() * share).half()
            tried = replace(self, steps=steps.where(steps > 0, self.steps))
            lost = tried._lost(W, felt)
            best = replace(self, steps=tried.steps.where(lost < least, best.steps))
            least = torch.minimum(least, lost)
        return best

    def _lost(self, W: Tensor, felt: Tensor) -> Float[Tensor, "m G"]:
        errors = felt * (W - self.values(self.round(W))).square()
        return torch.stack([part.sum(1) for part in _parts(errors, self.form)], 1)

    @property
    def scale(self) -> Float[Tensor, "m G"]:
        """The steps s, float32."""
        return self.unit * self.steps.float()

    def columns(self, start: int, end: int, n: int) -> tuple[Tensor, Tensor]:
        """The s and z of the columns from `start` to before `end` of n, each (m, end - start) or to be broadcast."""
        scale, zero = self._each()
        if scale.shape[1] == 1:
            return scale, zero
        at = torch.arange(start, end, device=scale.device) // self.form.group_of(n)
        return scale[:, at], zero[:, at]

    def round(self, W: Float[Tensor, "m n"]) -> Int[Tensor, "m n"]:
        """The nearest q of each weight, uint8."""
        n = W.shape[1]
        g = self.form.group_of(n)
        if n % g:
            return nearest(W, *self.columns(0, n, n), self.form.levels).to(torch.uint8)
        q = torch.empty(W.shape, dtype=torch.uint8, device=W.device)
        for rows, scale, zero in self._rows(*W.shape):
            parts = W[rows].unflatten(1, (-1, g))
            q[rows] = nearest(parts, scale, zero, self.form.levels).flatten(1)  # whole numbers
        return q

    def values(self, q: Int[Tensor, "m n"]) -> Float[Tensor, "m n"]:
        """The weight s (q - z), float32."""
        n = q.shape[1]
        g = self.form.group_of(n)
        if n % g:
            scale, zero = self.columns(0, n, n)
            return scale * (q.float() - zero)
        if q.numel() <= CHUNK or torch.compiler.is_compiling() or is_fake(q):
            scale, zero = (x[..., None] for x in self._each())
            return q.float().unflatten(1, (-1, g)).sub_(zero).mul_(scale).flatten(1)
        W = torch.empty(q.shape, device=q.device)
        for rows, scale, zero in self._rows(*q.shape):
            W[rows] = q[rows].float().unflatten(1, (-1, g)).sub_(zero).mul_(scale).flatten(1)
        return W

    def _rows(self, m: int, n: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Some rows after others, with their s and z (rows, G, 1): few enough that memory is used again."""
        scale, zero = (x[..., None].expand(m, -1, 1) for x in self._each())
        step = max(1, CHUNK // max(1, n))
        for start in range(0, m, step):
            rows = slice(start, start + step)
            yield rows, scale[rows], zero[rows]

    def _each(self) -> tuple[Tensor, Tensor]:
        scale = self.scale
        return scale, torch.full_like(scale, self.form.middle) if self.zero is None else self.zero.float()


def _parts(W: Tensor, form: Form) -> list[Tensor]:
    """What has a grid in common: groups of columns (m, g), or all as one row."""
    if form.per == "tensor":
        return [W.reshape(1, -1)]
    return list(W.split(form.group_of(W.shape[1]), dim=1))


def unit_of(scale: Float[Tensor, "..."]) -> Float[Tensor, ""]:
    """The greatest power of 2 that is not above the largest step; 1 where all steps are 0."""
    largest = scale.amax()
    if not bool(largest > 0):
        return scale.new_ones(())
    exponent = torch.frexp(largest).exponent
    return torch.ldexp(scale.new_ones(()), exponent - 1)


def levels(bits: float) -> int:
    """The greatest number of so many bits."""
    return 2 if bits == TERNARY else 2 ** int(bits) - 1


def nearest(W: Tensor, scale: Tensor, zero: Tensor, levels: int) -> Tensor:
    """The q of weights, as whole floating-point numbers."""
    if levels == 1:
        return (W >= 0).to(W.dtype)
    return (W / scale).round_().add_(zero).clamp_(0, levels)


def _nearest_step(sizes: Float[Tensor, "m g"], bits: float) -> Float[Tensor, "m"]:
    """The step of the binary or ternary weights that are nearest to weights of these absolute values, row by row."""
    if bits == BINARY:
        return 2 * sizes.mean(1)
    sums = sizes.sort(1, descending=True).values.cumsum(1)
    count = torch.arange(1, sizes.shape[1] + 1, device=sizes.device)
    k = (sums.square() / count).argmax(1, keepdim=True)
    return (sums.gather(1, k) / (k + 1)).squeeze(1)
