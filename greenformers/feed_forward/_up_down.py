"""Two linear layers and an activation: what `dense` and `chunked` compute alike."""

from collections.abc import Callable

from torch import Tensor

from greenformers._torch import flat
from greenformers.feed_forward._contract import FeedForward, Size
from greenformers.lowrank.linear import LED, is_plain


class UpDown(FeedForward):
    """down(activation(up(x))), its linear layers dense or low-rank.

    Args:
        size: of the network around it.

    Attributes:
        activation_learns: whether the activation has parameters (prelu, xielu): a recomputation gives them no gradient.
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
        """Whether both linear layers are; they may have been replaced since they were made."""
        return isinstance(self.up, LED) and isinstance(self.down, LED) and self.known

    @property
    def known(self) -> bool:
        """Whether both linear layers are dense or low-rank, and not of another kind that has taken their place."""
        return is_plain(self.up) and is_plain(self.down)

    def whole(self, x: Tensor) -> Tensor:
        """The definition."""
        y: Tensor = self.down(self.activation(self.up(x)))
        return y

    def flat(self) -> Callable[[Tensor], Tensor]:
        up, down, activation = (flat(part) for part in (self.up, self.down, self.activation))
        return lambda x: down(activation(up(x)))
