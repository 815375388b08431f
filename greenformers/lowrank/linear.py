"""LED, the linear encoder-decoder unit. Winata 2020, arXiv:1910.13923; thesis 3.1.1: x W ~ (x E) D.

With E (n x r) and D (r x m), parameters and multiply-adds a position are r (m + n) instead of m n: fewer for
r < m n / (m + n).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class LED(nn.Module):
    """A linear map of rank at most r, in place of nn.Linear.

    Args:
        in_features: width n of the input.
        out_features: width m of the output.
        rank: r, in 1..min(n, m).
        bias: add a bias after the second factor.

    Attributes:
        encoder: E^T (r, n).
        decoder: D^T (m, r).

    Raises:
        ValueError: rank out of range.
    """

    def __init__(self, in_features: int, out_features: int, rank: int, bias: bool = True) -> None:
        super().__init__()
        limit = min(in_features, out_features)
        if not 1 <= rank <= limit:
            raise ValueError(f"rank must be in 1..{limit} for a {in_features} x {out_features} map, got {rank}")
        self.in_features, self.out_features, self.rank = in_features, out_features, rank
        self.encoder = nn.Parameter(torch.empty(rank, in_features))
        self.decoder = nn.Parameter(torch.empty(out_features, rank))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.reset_parameters()

    @property
    def weight(self) -> Float[Tensor, "m n"]:
        """The dense weight the two factors stand for, as nn.Linear holds it."""
        return self.decoder @ self.encoder

    def reset_parameters(self, std: float | None = None) -> None:
        """Draw the factors so that outputs vary as those of the dense map they stand for.

        Two stacked nn.Linear give a third of its output variance. Here the code has the variance of the input
        and the product's entries have standard deviation `std`; r times var(E) times var(D) = std^2.

        Args:
            std: of the dense weight; by default that of nn.Linear, 1 / sqrt(3 n).
        """
        if self.encoder.is_meta:  # nothing can be drawn there, and trying takes milliseconds
            return
        std = (3 * self.in_features) ** -0.5 if std is None else std
        nn.init.normal_(self.encoder, std=self.in_features**-0.5)
        nn.init.normal_(self.decoder, std=std * (self.in_features / self.rank) ** 0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "... n"]) -> Float[Tensor, "... m"]:
        """Map the last dimension, through the rank."""
        return F.linear(F.linear(x, self.encoder), self.decoder, self.bias)

    def extra_repr(self) -> str:  # noqa: D102
        return f"{self.in_features}, {self.out_features}, rank={self.rank}, bias={self.bias is not None}"


class HeadLED(nn.Module):
    """The projections of H heads, each of two factors of its own. Thesis, eq. 3.2 as printed: x E_i D_i, without bias.

    It is an LED of rank H r whose second factor is block-diagonal: H r (n + D) parameters.

    Args:
        in_features: width n of the input.
        out_features: H D, one vector of a head after the other.
        rank: r of each head, in 1..min(n, D).
        heads: H, a divisor of `out_features`.

    Attributes:
        encoder: E_1^T to E_H^T, one under the other (H r, n).
        decoder: D_1^T to D_H^T (H, D, r).

    Raises:
        ValueError: rank out of range.
    """

    bias = None

    def __init__(self, in_features: int, out_features: int, rank: int, heads: int) -> None:
        super().__init__()
        width = out_features // heads
        limit = min(in_features, width)
        if not 1 <= rank <= limit:
            raise ValueError(f"rank must be in 1..{limit} for heads of {in_features} x {width}, got {rank}")
        self.in_features, self.out_features, self.heads = in_features, out_features, heads
        self.encoder = nn.Parameter(torch.empty(heads * rank, in_features))
        self.decoder = nn.Parameter(torch.empty(heads, width, rank))
        self.reset_parameters()

    @property
    def rank(self) -> int:
        """H r, the width of the code."""
        return len(self.encoder)

    @property
    def weight(self) -> Float[Tensor, "m n"]:
        """The dense weight the factors stand for, as nn.Linear holds it."""
        return torch.block_diag(*self.decoder) @ self.encoder

    def reset_parameters(self, std: float | None = None) -> None:
        """Draw the factors, see `LED.reset_parameters`."""
        if self.encoder.is_meta:
            return
        std = (3 * self.in_features) ** -0.5 if std is None else std
        nn.init.normal_(self.encoder, std=self.in_features**-0.5)
        nn.init.normal_(self.decoder, std=std * (self.in_features / self.decoder.shape[2]) ** 0.5)

    def forward(self, x: Float[Tensor, "... n"]) -> Float[Tensor, "... m"]:
        """Map the last dimension, through the ranks."""
        return self.decode(F.linear(x, self.encoder))

    def decode(self, code: Float[Tensor, "... Hr"]) -> Float[Tensor, "... m"]:
        """The last factors, of the codes of all heads."""
        return torch.einsum("...hr,hdr->...hd", code.unflatten(-1, (self.heads, -1)), self.decoder).flatten(-2)

    def extra_repr(self) -> str:  # noqa: D102
        return f"{self.in_features}, {self.out_features}, rank={self.decoder.shape[2]}, heads={self.heads}"


LinearMap = nn.Linear | LED | HeadLED


def linear_map(
    in_features: int, out_features: int, rank: int | None, *, bias: bool = True, heads: int | None = None
) -> LinearMap:
    """A dense linear layer, or an LED where a rank is given: one of each head where there are so many."""
    if rank is None:
        return nn.Linear(in_features, out_features, bias)
    if heads is not None:
        return HeadLED(in_features, out_features, rank, heads)
    return LED(in_features, out_features, rank, bias)


def encode(maps: Sequence[LinearMap], x: Float[Tensor, "... n"]) -> list[Tensor]:
    """What is left of each map's input before its last factor: the code of an LED, `x` itself for a dense map.

    All LEDs share one matrix product: x is read once, and one wide product is faster than many narrow ones.
    """
    leds = [item for item in maps if isinstance(item, LED | HeadLED)]
    if not leds:
        return [x] * len(maps)
    encoder = leds[0].encoder if len(leds) == 1 else torch.cat([led.encoder for led in leds])
    codes = iter(F.linear(x, encoder).split([led.rank for led in leds], dim=-1))
    return [next(codes) if isinstance(item, LED | HeadLED) else x for item in maps]


def decode(item: LinearMap, code: Float[Tensor, "... r"], kept: Float[Tensor, "... 1"] | None = None) -> Tensor:
    """The last factor of a map, applied to what `encode` gave.

    Args:
        item: a dense map or an LED.
        code: codes (..., r).
        kept: where codes were summed over positions, the sum of their weights: the bias counts that often.
    """
    if isinstance(item, HeadLED):
        return item.decode(code)
    if not isinstance(item, LED):
        found = item(code)  # as a module: hooks on it see what it maps
        return found if kept is None or item.bias is None else torch.addcmul(found, kept - 1, item.bias)
    if kept is None or item.bias is None:
        return F.linear(code, item.decoder, item.bias)
    return torch.addcmul(F.linear(code, item.decoder), kept, item.bias)
