"""The contract of the feed-forward slot: one size, one signature, and capabilities the layer may ask for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers.lowrank.linear import LinearLayer, linear_layer


@dataclass(frozen=True)
class Size:
    """Sizes of the network around a feed-forward block, which it is built with.

    Attributes:
        width: Width d of its input and output.
        hidden: Width f of the inner activation.
        activation: Function that makes the activation, an elementwise module.
        layer: Index of its layer, from 0; layers of a decoder count on from those of its encoder.
        layers: Number of layers of the network.
        ranks: LED ranks of linear layers by name (up, gate, down); those not named, or None, are dense.
        bias: Whether linear layers have a bias.
        causal: Whether a position may not depend on later ones.
        max_len: Length of the longest sequence; None where it is not known.

    Raises:
        ValueError: A number is out of range.
    """

    width: int
    hidden: int
    activation: Callable[[], nn.Module] = nn.ReLU
    layer: int = 0
    layers: int = 1
    ranks: Mapping[str, int | None] = field(default_factory=dict)
    bias: bool = True
    causal: bool = False
    max_len: int | None = None

    def __post_init__(self) -> None:
        for name in ("width", "hidden", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.layer < self.layers:
            raise ValueError(f"layer must be in 0..{self.layers - 1}, got {self.layer}")

    def up(self, name: str = "up") -> LinearLayer:
        """A linear layer from d to f, dense or of the rank under its name."""
        return linear_layer(self.width, self.hidden, self.ranks.get(name), bias=self.bias)

    def down(self) -> LinearLayer:
        """A linear layer from f to d, dense or of its rank."""
        return linear_layer(self.hidden, self.width, self.ranks.get("down"), bias=self.bias)


class FeedForward(nn.Module):
    """Base of every feed-forward block: `forward` is the one signature of the slot; the rest are capabilities.

    A capability is asked for by the layer, never looked up by name. A block keeps the answers given here for those it
    lacks.
    """

    has_loss: bool = False
    """Whether `forward_with_loss` gives a loss to train with."""

    by_position: ClassVar[bool] = True
    """Whether a layer may call it on some positions at a time: the output at a position depends on no other, and a call
    on few positions costs no more for each."""

    continues: bool = True
    """Whether it may be called on positions whose earlier ones are in a cache."""

    chooses: ClassVar[bool] = False
    """Whether it makes a choice that rounding can change. `forward` and `forward_with_loss` then take `choice`, a
    dictionary: an empty one is filled, and later calls on inputs that differ only by rounding go by what it holds."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size

    @property
    def inner_width(self) -> int:
        """Width of the inner activation of a position, which says how many positions at a time stay in a cache."""
        return self.size.hidden

    def forward(self, x: Float[Tensor, "*B N d"], mask: Bool[Tensor, "*B N"] | None = None) -> Float[Tensor, "*B N d"]:
        """Change every position.

        Args:
            x: Input of the layer (B, N, d).
            mask: True = keep. Outputs at kept positions do not depend on masked ones; outputs at masked positions are
                finite and mean nothing.
        """
        raise NotImplementedError

    def forward_with_loss(
        self, x: Float[Tensor, "*B N d"], mask: Bool[Tensor, "*B N"] | None = None
    ) -> tuple[Float[Tensor, "*B N d"], Float[Tensor, ""]]:
        """`forward`, and a weighted loss to be added to that of the task; nothing is stored on the module."""
        raise NotImplementedError(f"{type(self).__name__} has no loss of its own")

    def flat(self) -> Callable[[Tensor], Tensor]:
        """`forward` of one token (B, 1, d) without a mask, as a function that calls no module; for inference alone."""
        return self.forward

    def reset_parameters(self) -> None:
        """Draw the block's own parameters anew (none here), those of its linear layers left out."""
