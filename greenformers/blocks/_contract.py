"""The contract of the block slot: what is more than an attention, and stands where a layer stands."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from jaxtyping import Bool, Float
from torch import Tensor, nn

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
        feed_forward: makes a position-wise (..., d) to (..., d) feed-forward block; by default ReLU between two maps.

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
    feed_forward: Callable[[], nn.Module] | None = None

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

    def make_feed_forward(self) -> nn.Module:
        """The feed-forward block."""
        if self.feed_forward is not None:
            return self.feed_forward()
        return nn.Sequential(
            linear_map(self.width, self.hidden, self.ranks.get("up")),
            nn.ReLU(),
            linear_map(self.hidden, self.width, self.ranks.get("down")),
        )


class Block(nn.Module):
    """A layer of its own kind, residuals and norms included.

    Its file raises where it cannot do what the size asks for: "<name> has no causal form: <why>".
    """

    keeps_length: ClassVar[bool] = True
    """Whether it gives a vector for each of its input; otherwise it is for pooling."""

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
            mask: True = keep. What is masked changes nothing of what is kept; its own output is finite and means
                nothing.
            memory: what the layer before, of the same kind, handed on; None in the first layer.

        Returns:
            The sequence, and what is handed to the next layer; None where there is nothing besides.
        """
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Draw the block's own parameters anew (none here), those of its linear maps left out."""
