"""LED, the linear encoder-decoder unit of the Low-Rank Transformer (Winata 2020, arXiv:1910.13923): x W ~ (x E) D.

Greenformers thesis (Cahyawijaya 2021), 3.1.1.

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
    """A factor of a linear layer: no bias, weight not initialised, and the `spread` that `draw` reads."""
    with torch.device("meta"):
        layer = nn.Linear(in_features, out_features, bias=False)
    layer.weight = nn.Parameter(torch.empty(out_features, in_features))
    layer.spread = spread  # type: ignore[assignment]
    return layer


def draw(layer: nn.Linear, std: float) -> None:
    """Draw a linear layer's weight with this standard deviation, or a factor of one whose dense weight has it."""
    if not layer.weight.is_meta:  # nothing can be drawn there, and trying takes milliseconds
        own, times = getattr(layer, "spread", Spread(std))
        nn.init.normal_(layer.weight, std=own + times * std)


class LED(nn.Module):
    """A linear layer of rank at most r, in place of nn.Linear.

    Args:
        in_features: Width n of the input.
        out_features: Width m of the output.
        rank: Rank r, in 1..min(n, m).
        bias: Whether a bias is added after the second factor.

    Attributes:
        encoder: Linear layer with the weight E^T (r, n).
        decoder: Linear layer with the weight D^T (m, r).

    Raises:
        ValueError: The rank is out of range.
    """

    def __init__(self, in_features: int, out_features: int, rank: int, bias: bool = True) -> None:
        super().__init__()
        limit = min(in_features, out_features)
        if not 1 <= rank <= limit:
            sizes = f"{in_features} x {out_features}"
            raise ValueError(f"rank must be in 1..{limit} for a {sizes} linear layer, got {rank}")
        self.in_features, self.out_features, self.rank = in_features, out_features, rank
        self.encoder = factor(in_features, rank, Spread(in_features**-0.5))
        self.decoder = factor(rank, out_features, Spread(times=(in_features / rank) ** 0.5))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.reset_parameters()

    @property
    def weight(self) -> Float[Tensor, "m n"]:
        """The product of the two factors, the dense weight as nn.Linear holds it; see `computed`."""
        shape = self.out_features, self.in_features
        return computed(lambda: self.decoder.weight @ self.encoder.weight, shape, self.decoder.weight)

    @property
    def plain(self) -> bool:
        """Whether its `forward` computes what its weights say: no factor is replaced, and nothing watches one."""
        return is_plain(self.encoder) and is_plain(self.decoder)

    def reset_parameters(self, std: float | None = None) -> None:
        """Draw the factors so that outputs vary as those of the dense linear layer they replace.

        Two stacked nn.Linear give a third of its output variance. Here the code has the variance of the input
        and the product's entries have standard deviation `std`; r times var(E) times var(D) = std^2.

        Args:
            std: Standard deviation of the dense weight; by default that of nn.Linear, 1 / sqrt(3 n).
        """
        std = (3 * self.in_features) ** -0.5 if std is None else std
        draw(self.encoder, std)
        draw(self.decoder, std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "... n"]) -> Float[Tensor, "... m"]:
        """Project the last dimension with both factors."""
        encoder, decoder = self.encoder, self.decoder
        if is_plain(encoder) and is_plain(decoder):
            return F.linear(F.linear(x, encoder.weight), decoder.weight, self.bias)
        return self.decode(encoder(x))

    def flat(self) -> Callable[[Tensor], Tensor]:
        """A function that computes the same while nothing watches the module, see `greenformers._torch.flat`."""
        if not self.plain:
            return self.forward
        encoder, decoder = self.encoder, self.decoder
        return lambda x: F.linear(F.linear(x, encoder.weight), decoder.weight, self.bias)

    def decode(self, code: Float[Tensor, "... r"]) -> Float[Tensor, "... m"]:
        """The second factor applied to a code, bias included."""
        if self.plain:
            return F.linear(code, self.decoder.weight, self.bias)
        output: Tensor = self.decoder(code)
        return output if self.bias is None else output + self.bias

    def extra_repr(self) -> str:  # noqa: D102
        return f"{self.in_features}, {self.out_features}, rank={self.rank}, bias={self.bias is not None}"


class HeadLED(nn.Module):
    """The projections x E_i D_i of H heads, each of two factors of its own, without bias. Cahyawijaya 2021, eq. 3.2.

    It is an LED of rank H r whose second factor is block-diagonal: H r (n + D) parameters.

    Args:
        in_features: Width n of the input.
        out_features: Width H D of the output, the vectors of the heads one after the other.
        rank: Rank r of each head, in 1..min(n, D).
        heads: Number H of heads, a divisor of `out_features`.

    Attributes:
        encoder: Linear layer with the weights E_1^T to E_H^T, one under the other (H r, n).
        decoder: The weights D_1^T to D_H^T (H, D, r).

    Raises:
        ValueError: The rank is out of range.
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
        """The product of the factors, the dense weight as nn.Linear holds it."""
        return torch.block_diag(*self.decoder) @ self.encoder.weight

    @property
    def plain(self) -> bool:
        """Whether it computes what its weights say, as `LED.plain`; the second factors are no modules."""
        return is_plain(self.encoder)

    def reset_parameters(self, std: float | None = None) -> None:
        """Draw the factors, see `LED.reset_parameters`."""
        std = (3 * self.in_features) ** -0.5 if std is None else std
        draw(self.encoder, std)
        self.draw_decoder(std)

    def draw_decoder(self, std: float) -> None:
        """Draw the second factors of a layer whose dense weight is to have this standard deviation."""
        nn.init.normal_(self.decoder, std=std * (self.in_features / self.decoder.shape[2]) ** 0.5)

    def forward(self, x: Float[Tensor, "... n"]) -> Float[Tensor, "... m"]:
        """Project the last dimension with both factors of each head."""
        return self.decode(self.encoder(x))

    def decode(self, code: Float[Tensor, "... Hr"]) -> Float[Tensor, "... m"]:
        """The second factors applied to the codes of all heads."""
        return torch.einsum("...hr,hdr->...hd", code.unflatten(-1, (self.heads, -1)), self.decoder).flatten(-2)

    def extra_repr(self) -> str:  # noqa: D102
        return f"{self.in_features}, {self.out_features}, rank={self.decoder.shape[2]}, heads={self.heads}"


LinearLayer = nn.Linear | LED | HeadLED


def is_plain(layer: nn.Module) -> bool:
    """Whether a linear layer computes what its weights say: it is of a known class, and nothing watches it."""
    if type(layer) is not nn.Linear and not (isinstance(layer, LED | HeadLED) and layer.plain):
        return False
    return not is_watched(layer)


def linear_layer(
    in_features: int, out_features: int, rank: int | None, *, bias: bool = True, heads: int | None = None
) -> LinearLayer:
    """A dense linear layer; with a rank an LED, and with a number of heads too a `HeadLED`."""
    if rank is None:
        return nn.Linear(in_features, out_features, bias)
    if heads is not None:
        return HeadLED(in_features, out_features, rank, heads)
    return LED(in_features, out_features, rank, bias)


def encode(layers: Sequence[LinearLayer], x: Float[Tensor, "... n"]) -> list[Tensor]:
    """The input of the last factor of each layer: the code of an LED, `x` itself for a dense layer.

    All LEDs share one matrix product: x is read once, and one wide product is faster than many narrow ones.
    """
    leds = [layer for layer in layers if isinstance(layer, LED | HeadLED)]
    if all(led.plain for led in leds):
        weights = [led.encoder.weight for led in leds]
        wide = weights[0] if len(leds) == 1 else torch.cat(weights) if leds else None
        codes = iter(() if wide is None else F.linear(x, wide).split([led.rank for led in leds], dim=-1))
    else:
        codes = (led.encoder(x) for led in leds)
    return [next(codes) if isinstance(layer, LED | HeadLED) else x for layer in layers]


def decode(
    layer: LinearLayer, code: Float[Tensor, "... r"], weight_sum: Float[Tensor, "... 1"] | None = None
) -> Tensor:
    """The last factor of a layer, applied to what `encode` gave.

    Args:
        layer: A dense linear layer or an LED.
        code: The codes (..., r), or inputs of a dense layer.
        weight_sum: Sum of the weights (..., 1) with which codes were summed over positions: the bias counts that often.
            None: codes of single positions.
    """
    if weight_sum is None or layer.bias is None:
        return layer.decode(code) if isinstance(layer, LED | HeadLED) else layer(code)
    if isinstance(layer, LED) and layer.plain:
        return torch.addcmul(F.linear(code, layer.decoder.weight), weight_sum, layer.bias)
    output = layer.decode(code) if isinstance(layer, LED) else layer(code)  # as a module: hooks on it see its inputs
    return torch.addcmul(output, weight_sum - 1, layer.bias)
