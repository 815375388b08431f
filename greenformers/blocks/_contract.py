"""The contract of the block slot: what is more than an attention, and stands where a layer stands."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers.feed_forward import FeedForward, build
from greenformers.feed_forward import Size as FeedForwardSize
from greenformers.lowrank.linear import LinearMap, linear_map


@dataclass(frozen=True)
class Size:
    """What a block needs to know of the network around it.

    Attributes:
        width: d of its input and output.
        heads: H, a divisor of d.
        hidden: f of the feed-forward block, where it has one.
        max_len: longest sequence it will see.
        causal: position i may depend on positions up to i alone.
        layer: index of the layer it is, from 0.
        layers: of the network.
        dropout: probability of dropping a number of what a residual is added to, in training.
        eps: epsilon of layer norm.
        ranks: LED ranks of linear maps by name (q, k, v, output, up, down); those not named, or None, are dense.
        feed_forward: makes the feed-forward block of a block that has one; by default `dense`, with ReLU.

    Raises:
        ValueError: a number is out of range.
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

    def map(self, name: str) -> LinearMap:
        """A linear map of width d, dense or of its rank."""
        return linear_map(self.width, self.width, self.ranks.get(name))

    def make_feed_forward(self) -> FeedForward:
        """The feed-forward block.

        Raises:
            ValueError: it has a loss of its own, for which a block has no place.
        """
        if self.feed_forward is None:
            return build("dense", FeedForwardSize(self.width, self.hidden, ranks=self.ranks))
        made = self.feed_forward()
        if made.has_loss:
            raise ValueError(f"feed_forward must have no loss of its own in a block, {type(made).__name__} has one")
        return made


class Block(nn.Module):
    """A layer of its own kind, residuals and norms included.

    Its file raises where it cannot do what the size asks for: "<name> has no causal form: <why>".
    """

    keeps_length: ClassVar[bool] = True
    """Whether it gives a vector for each of its input; otherwise it is for pooling."""

    has_feed_forward: ClassVar[bool] = False
    """Whether it has a feed-forward block, of the kind in the network's slot."""

    positions: ClassVar[Literal["model", "own"]] = "model"
    """Who says where tokens stand: the model, by its embedding; or the block itself, for any number of tokens."""

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
            x: the sequence.
            mask: True = keep. Neither what is masked nor how much of it is before and behind a text changes anything
                of what is kept; its own output is finite and means nothing.
            memory: what the layer before, of the same kind, handed on; None in the first layer.

        Returns:
            The sequence, and what is handed to the next layer; None where there is nothing besides.
        """
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Draw the block's own parameters anew (none here), those of its linear maps left out."""
