"""The contract of the feed-forward slot: one size, one signature, and capabilities the layer may ask for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers.lowrank.linear import LinearMap, linear_map


@dataclass(frozen=True)
class Size:
    """What a feed-forward block needs to know of the network around it.

    Attributes:
        width: d of its input and output.
        hidden: f, the width inside.
        activation: makes the activation, an elementwise module.
        layer: index of the layer it stands in, from 0; a decoder's count on from the encoder's.
        layers: of the network.
        ranks: LED ranks of linear layers by name (up, gate, down); those not named, or None, are dense.
        bias: whether linear layers have one.

    Raises:
        ValueError: a number is out of range.
    """

    width: int
    hidden: int
    activation: Callable[[], nn.Module] = nn.ReLU
    layer: int = 0
    layers: int = 1
    ranks: Mapping[str, int | None] = field(default_factory=dict)
    bias: bool = True

    def __post_init__(self) -> None:
        for name in ("width", "hidden", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.layer < self.layers:
            raise ValueError(f"layer must be in 0..{self.layers - 1}, got {self.layer}")

    def up(self, name: str = "up") -> LinearMap:
        """A linear layer from d to f, dense or of the rank under its name."""
        return linear_map(self.width, self.hidden, self.ranks.get(name), bias=self.bias)

    def down(self) -> LinearMap:
        """A linear layer from f to d, dense or of its rank."""
        return linear_map(self.hidden, self.width, self.ranks.get("down"), bias=self.bias)


class FeedForward(nn.Module):
    """Base of every feed-forward block: `forward` is the one signature of the slot; the rest are capabilities.

    A capability is asked for by the layer, never looked up by name. Those a block lacks keep the answers given here.
    """

    has_loss: ClassVar[bool] = False
    """Whether `forward_with_loss` gives a loss that belongs to the training."""

    by_position: ClassVar[bool] = True
    """Whether what a position gets depends on no other one: a layer may then give it a part of the positions."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size

    @property
    def inner_width(self) -> int:
        """Width of a position's inner activation: it says how many positions at a time stay in a cache."""
        return self.size.hidden

    def forward(self, x: Float[Tensor, "*B N d"], mask: Bool[Tensor, "*B N"] | None = None) -> Float[Tensor, "*B N d"]:
        """Change every position.

        Args:
            x: the sequence.
            mask: True = keep. What is masked changes nothing of what is kept; its own output is finite and means
                nothing.
        """
        raise NotImplementedError

    def forward_with_loss(
        self, x: Float[Tensor, "*B N d"], mask: Bool[Tensor, "*B N"] | None = None
    ) -> tuple[Float[Tensor, "*B N d"], Float[Tensor, ""]]:
        """`forward`, and a loss to be added to that of the task, already weighted; nothing is kept on the module."""
        raise NotImplementedError(f"{type(self).__name__} has no loss of its own")

    def flat(self) -> Callable[[Tensor], Tensor]:
        """`forward` of one token (B, 1, d) without a mask, as a function that calls no module; of inference alone."""
        return self.forward

    def reset_parameters(self) -> None:
        """Draw the block's own parameters anew (none here), those of its linear layers left out."""
