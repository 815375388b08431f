"""The gated feed-forward block. Shazeer 2020, arXiv:2002.05202, eq. 5-6: (act(x W) * (x V)) W2.

SwiGLU with the activation "silu", GEGLU with "gelu", the first GLU (Dauphin 2016, arXiv:1612.08083) with "sigmoid".
Three matrices of d f in place of two: with f two thirds as wide, as many parameters. Time O(N d f), memory O(N f).
"""

from collections.abc import Callable

from jaxtyping import Bool, Float
from torch import Tensor

from greenformers._torch import flat
from greenformers.feed_forward._contract import FeedForward, Size
from greenformers.lowrank.linear import LinearLayer, decode, encode


class Gated(FeedForward):
    """down(activation(gate(x)) * up(x)).

    Args:
        size: Sizes of the network around it.
    """

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self.gate, self.up, self.down = size.up("gate"), size.up(), size.down()
        self.activation = size.activation()

    @property
    def inner_width(self) -> int:  # noqa: D102
        return 2 * int(self.up.out_features)

    def forward(  # noqa: D102
        self, x: Float[Tensor, "*B N d"], mask: Bool[Tensor, "*B N"] | None = None
    ) -> Float[Tensor, "*B N d"]:
        if isinstance(self.gate, LinearLayer) and isinstance(self.up, LinearLayer):
            # Two low-rank layers read x in one product.
            layers = (self.gate, self.up)
            gate, up = (decode(layer, code) for layer, code in zip(layers, encode(layers, x), strict=True))
        else:
            gate, up = self.gate(x), self.up(x)
        y: Tensor = self.down(self.activation(gate) * up)
        return y

    def flat(self) -> Callable[[Tensor], Tensor]:  # noqa: D102
        gate, up, down, activation = (flat(part) for part in (self.gate, self.up, self.down, self.activation))
        return lambda x: down(activation(gate(x)).mul_(up(x)))
