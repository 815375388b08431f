"""LED, the linear encoder-decoder unit. Winata 2020, arXiv:1910.13923; thesis 3.1.1: x W ~ (x E) D.

With E (n x r) and D (r x m), parameters and multiply-adds a position are r (m + n) instead of m n: fewer for
r < m n / (m + n).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from greenformers._torch import is_watched
from greenformers.lowrank.computed import computed


class Spread(NamedTuple):
    """The standard deviation of a factor's entries: `own`, or `times` that of the dense weight."""

    own: float = 0.0
    times: float = 0.0


def factor(in_features: int, out_features: int, spread: Spread) -> nn.Linear:
    """A factor of a linear layer: a linear layer without bias, not drawn yet, with a mark that says how it will be."""
    with torch.device("meta"):
        made = nn.Linear(in_features, out_features, bias=False)
    made.weight = nn.Parameter(torch.empty(out_features, in_features))
    made.spread = spread  # type: ignore[assignment]
    return made


def draw(layer: nn.Linear, std: float) -> None:
    """Draw the weight of a linear layer, or of a factor of one whose entries are to have this standard deviation."""
    if not layer.weight.is_meta:  # nothing can be drawn there, and trying takes milliseconds
        own, times = getattr(layer, "spread", Spread(std))
        nn.init.normal_(layer.weight, std=own + times * std)


class LED(nn.Module):
    """A linear map of rank at most r, in place of nn.Linear.

    Args:
        in_features: width n of the input.
        out_features: width m of the output.
        rank: r, in 1..min(n, m).
        bias: add a bias after the second factor.

    Attributes:
        encoder: linear layer with the weight E^T (r, n).
        decoder: linear layer with the weight D^T (m, r).

    Raises:
        ValueError: rank out of range.
    """

    def __init__(self, in_features: int, out_features: int, rank: int, bias: bool = True) -> None:
        super().__init__()
        limit = min(in_features, out_features)
        if not 1 <= rank <= limit:
            raise ValueError(f"rank must be in 1..{limit} for a {in_features} x {out_features} map, got {rank}")
        self.in_features, self.out_features, self.rank = in_features, out_features, rank
        self.encoder = factor(in_features, rank, Spread(in_features**-0.5))
        self.decoder = factor(rank, out_features, Spread(times=(in_features / rank) ** 0.5))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.reset_parameters()

    @property
    def weight(self) -> Float[Tensor, "m n"]:
        """The dense weight the two factors stand for, as nn.Linear holds it; see `computed`."""
        shape = self.out_features, self.in_features
        return computed(lambda: self.decoder.weight @ self.encoder.weight, shape, self.decoder.weight)

    @property
    def plain(self) -> bool:
        """Whether it computes what its weights say: nothing has taken a factor's place, or watches it or a factor."""
        return is_plain(self.encoder) and is_plain(self.decoder)

    def reset_parameters(self, std: float | None = None) -> None:
        """Draw the factors so that outputs vary as those of the dense map they stand for.

        Two stacked nn.Linear give a third of its output variance. Here the code has the variance of the input
        and the product's entries have standard deviation `std`; r times var(E) times var(D) = std^2.

        Args:
            std: of the dense weight; by default that of nn.Linear, 1 / sqrt(3 n).
        """
        std = (3 * self.in_features) ** -0.5 if std is None else std
        draw(self.encoder, std)
        draw(self.decoder, std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "... n"]) -> Float[Tensor, "... m"]:
        """Map the last dimension, through the rank."""
        encoder, decoder = self.encoder, self.decoder
        if is_plain(encoder) and is_plain(decoder):
            return F.linear(F.linear(x, encoder.weight), decoder.weight, self.bias)
        return self.decode(encoder(x))

    def flat(self) -> Callable[[Tensor], Tensor]:
        """What it computes while nothing watches it, see `greenformers._torch.flat`."""
        if not self.plain:
            return self.forward
        encoder, decoder = self.encoder, self.decoder
        return lambda x: F.linear(F.linear(x, encoder.weight), decoder.weight, self.bias)

    def decode(self, code: Float[Tensor, "... r"]) -> Float[Tensor, "... m"]:
        """The last factor, of a code."""
        if self.plain:
            return F.linear(code, self.decoder.weight, self.bias)
        found: Tensor = self.decoder(code)
        return found if self.bias is None else found + self.bias

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
        encoder: linear layer with the weights E_1^T to E_H^T, one under the other (H r, n).
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
        self.encoder = factor(in_features, heads * rank, Spread(in_features**-0.5))
        self.decoder = nn.Parameter(torch.empty(heads, width, rank))
        self.reset_parameters()

    @property
    def rank(self) -> int:
        """H r, the width of the code."""
        return self.encoder.out_features

    @property
    def weight(self) -> Float[Tensor, "m n"]:
        """The dense weight the factors stand for, as nn.Linear holds it."""
        return torch.block_diag(*self.decoder) @ self.encoder.weight

    @property
    def plain(self) -> bool:
        """See `LED.plain`, of the first factors."""
        return is_plain(self.encoder)

    def reset_parameters(self, std: float | None = None) -> None:
        """Draw the factors, see `LED.reset_parameters`."""
        std = (3 * self.in_features) ** -0.5 if std is None else std
        draw(self.encoder, std)
        self.draw_decoder(std)

    def draw_decoder(self, std: float) -> None:
        """Draw the last factors of a map whose dense weight is to have this standard deviation."""
        nn.init.normal_(self.decoder, std=std * (self.in_features / self.decoder.shape[2]) ** 0.5)

    def forward(self, x: Float[Tensor, "... n"]) -> Float[Tensor, "... m"]:
        """Map the last dimension, through the ranks."""
        return self.decode(self.encoder(x))

    def decode(self, code: Float[Tensor, "... Hr"]) -> Float[Tensor, "... m"]:
        """The last factors, of the codes of all heads."""
        return torch.einsum("...hr,hdr->...hd", code.unflatten(-1, (self.heads, -1)), self.decoder).flatten(-2)

    def extra_repr(self) -> str:  # noqa: D102
        return f"{self.in_features}, {self.out_features}, rank={self.decoder.shape[2]}, heads={self.heads}"


LinearMap = nn.Linear | LED | HeadLED


def is_plain(item: nn.Module) -> bool:
    """Whether what a linear layer computes can be read from its weights: nothing has taken its place, or watches it."""
    if type(item) is nn.Linear:
        return not is_watched(item)
    return isinstance(item, LED | HeadLED) and item.plain


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
    if all(led.plain for led in leds):
        weights = [led.encoder.weight for led in leds]
        wide = weights[0] if len(leds) == 1 else torch.cat(weights) if leds else None
        codes = iter(() if wide is None else F.linear(x, wide).split([led.rank for led in leds], dim=-1))
    else:
        codes = (led.encoder(x) for led in leds)
    return [next(codes) if isinstance(item, LED | HeadLED) else x for item in maps]


def decode(item: LinearMap, code: Float[Tensor, "... r"], kept: Float[Tensor, "... 1"] | None = None) -> Tensor:
    """The last factor of a map, applied to what `encode` gave.

    Args:
        item: a dense map or an LED.
        code: codes (..., r).
        kept: where codes were summed over positions, the sum of their weights: the bias counts that often.
    """
    if kept is None or item.bias is None:
        return item.decode(code) if isinstance(item, LED | HeadLED) else item(code)
    if isinstance(item, LED) and item.plain:
        return torch.addcmul(F.linear(code, item.decoder.weight), kept, item.bias)
    found = item.decode(code) if isinstance(item, LED) else item(code)  # as a module: hooks on it see what it maps
    return torch.addcmul(found, kept - 1, item.bias)
