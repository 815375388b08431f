"""The contract of the block slot: a block takes the place of a whole layer, attention and feed-forward block."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers.feed_forward import FeedForward, build
from greenformers.feed_forward import Size as FeedForwardSize
from greenformers.lowrank.linear import LinearLayer, linear_layer


@dataclass(frozen=True)
class Size:
    """Sizes of the network around a block, which it is built with.

    Attributes:
        width: Width d of its input and output.
        heads: Number H of heads, a divisor of d.
        hidden: Inner width f of the feed-forward block, for blocks that have one.
        max_len: Length of the longest sequence it will get.
        causal: Whether position i may depend only on positions up to i.
        layer: Index of the layer, from 0.
        layers: Number of layers of the network.
        dropout: Probability, in training, of dropping an entry of an output before it is added to the residual.
        eps: Epsilon of layer norms.
        ranks: LED ranks of linear layers by name (q, k, v, output, up, down); those not named, or None, are dense.
        feed_forward: Function that makes the feed-forward block, for blocks that have one; by default `dense`, with
            ReLU.

    Raises:
        ValueError: A number is out of range.
    """

    width: int
    heads: int
    hidden: int
    max_len: int
    causal: bool = False
    layer: int = 0
    layers: int = 1
    dropout: float = 0.0
    eps: float = 1e-5
    ranks: Mapping[str, int | None] = field(default_factory=dict)
    feed_forward: Callable[[], FeedForward] | None = None

    def __post_init__(self) -> None:
        for name in ("width", "heads", "hidden", "max_len", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"heads must divide width {self.width}, got {self.heads}")
        if not 0 <= self.dropout <= 1:
            raise ValueError(f"dropout must be in 0..1, got {self.dropout}")
        if not 0 <= self.layer < self.layers:
            raise ValueError(f"layer must be in 0..{self.layers - 1}, got {self.layer}")

    def linear_layer(self, name: str) -> LinearLayer:
        """A linear layer from d to d, dense or of the rank under its name."""
        return linear_layer(self.width, self.width, self.ranks.get(name))

    def make_feed_forward(self) -> FeedForward:
        """The feed-forward block.

        Raises:
            ValueError: The feed-forward block has a loss of its own, which a block cannot return.
        """
        if self.feed_forward is None:
            return build("dense", FeedForwardSize(self.width, self.hidden, ranks=self.ranks))
        module = self.feed_forward()
        if module.has_loss:
            raise ValueError(f"feed_forward must have no loss of its own in a block, {type(module).__name__} has one")
        return module


class Block(nn.Module):
    """A layer of its own kind, residuals and norms included.

    Its file raises where it cannot do what the size asks for: "<name> has no causal form: <why>".
    """

    keeps_length: ClassVar[bool] = True
    """Whether the output has as many positions as the input; otherwise the block is for pooling."""

    has_feed_forward: ClassVar[bool] = False
    """Whether it has a feed-forward block, of the kind in the feed-forward slot of the network."""

    positions: ClassVar[Literal["model", "own"]] = "model"
    """What encodes positions: the model, in its embedding, or the block itself, for sequences of any length."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size

    def forward(
        self,
        x: Float[Tensor, "B N d"],
        mask: Bool[Tensor, "B N"] | None = None,
        memory: Float[Tensor, "B S d"] | None = None,
    ) -> tuple[Float[Tensor, "B N d"], Float[Tensor, "B S d"] | None]:
        """One layer.

        Args:
            x: The sequence (B, N, d).
            mask: True = keep. Outputs at kept positions depend neither on masked ones nor on how many of them stand
                before and behind a text; outputs at masked positions are finite and mean nothing.
            memory: State (B, S, d) returned by the layer before, of the same kind; None in the first layer.

        Returns:
            The sequence, and the state for the next layer; None for blocks without one.
        """
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Draw the block's own parameters anew (none here), those of its linear layers left out."""
