"""Two linear layers and an activation: the base of `dense` and `chunked`."""

from collections.abc import Callable

from torch import Tensor

from greenformers._torch import flat
from greenformers.feed_forward._contract import FeedForward, Size
from greenformers.lowrank.linear import LED, is_plain


class UpDown(FeedForward):
    """down(activation(up(x))), its linear layers dense or low-rank.

    Args:
        size: Sizes of the network around it.

    Attributes:
        activation_learns: Whether the activation has parameters (prelu, xielu): computing it again would give them no
            gradient.
    """

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self.up, self.activation, self.down = size.up(), size.activation(), size.down()
        self.activation_learns = bool(list(self.activation.parameters()))

    @property
    def inner_width(self) -> int:
        return int(self.up.out_features)

    @property
    def low_rank(self) -> bool:
        """Whether both linear layers are LEDs, which may change after construction."""
        return isinstance(self.up, LED) and isinstance(self.down, LED) and self.plain

    @property
    def plain(self) -> bool:
        """Whether both linear layers are dense or low-rank, and neither is replaced by a module of another kind."""
        return is_plain(self.up) and is_plain(self.down)

    def whole(self, x: Tensor) -> Tensor:
        """down(activation(up(x))) of all positions at once: the definition."""
        y: Tensor = self.down(self.activation(self.up(x)))
        return y

    def flat(self) -> Callable[[Tensor], Tensor]:
        up, down, activation = (flat(part) for part in (self.up, self.down, self.activation))
        return lambda x: down(activation(up(x)))
