"""The contract of the block slot: a block takes the place of a whole layer, attention and feed-forward block."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

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
        ranks: LED ranks of linear layers by name (q, k, v, output, up, gate, down); those not named, or None, are
            dense.
        feed_forward: Function that makes the feed-forward block, for blocks that have one; by default `dense`, with
            ReLU. It is told by keyword what a block does not leave as it is: `width`, `hidden`, `activation`.
        attention: Function of a width and a number of heads that makes the self-attention, for blocks that have one
            (`Block.attends`), see `make_attention`.
        cross_attention: Function that makes an attention to the encoder output; None: there is no encoder.
        norm: Function that makes the norm over a number of channels; by default layer norm.
        bias: Whether linear layers have a bias.

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
    feed_forward: Callable[..., FeedForward] | None = None
    attention: Callable[[int, int], nn.Module] | None = None
    cross_attention: Callable[[], nn.Module] | None = None
    norm: Callable[[int], nn.Module] | None = None
    bias: bool = True

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

    def linear_layer(self, name: str, inputs: int | None = None, outputs: int | None = None) -> LinearLayer:
        """A linear layer from d to d, or between other widths, dense or of the rank under its name."""
        return linear_layer(inputs or self.width, outputs or self.width, self.ranks.get(name), bias=self.bias)

    def make_norm(self, width: int | None = None) -> nn.Module:
        """A norm over d channels, or `width`."""
        width = width or self.width
        return nn.LayerNorm(width, eps=self.eps) if self.norm is None else self.norm(width)

    def make_feed_forward(self, **other: Any) -> FeedForward:
        """The feed-forward block.

        Args:
            **other: What differs from the network: `width`, `hidden`, or `activation`, the name of the one that is
                used where the network does not set one.

        Raises:
            ValueError: The feed-forward block has a loss of its own, which a block cannot return.
        """
        if self.feed_forward is None:
            if other.get("activation", "relu") != "relu":
                raise ValueError(f"feed_forward must be given for the activation {other['activation']}, got None")
            width, hidden = other.get("width", self.width), other.get("hidden", self.hidden)
            return build("dense", FeedForwardSize(width, hidden, ranks=self.ranks, bias=self.bias))
        module = self.feed_forward(**other)
        if module.has_loss:
            raise ValueError(f"feed_forward must have no loss of its own in a block, {type(module).__name__} has one")
        return module

    def make_attention(self, width: int | None = None, heads: int | None = None) -> nn.Module:
        """Self-attention of the kind in the attention slot: a module of (x, key_mask, past), all as in `Block.forward`.

        Args:
            width: Width of its input and output; by default d.
            heads: Number of its heads, a divisor of the width; by default H.

        Raises:
            ValueError: No function that makes it is given, or it cannot be made.
        """
        if self.attention is None:
            raise ValueError("attention must be given, a function that makes it (greenformers.model.block.size_of)")
        return self.attention(width or self.width, heads or self.heads)


@runtime_checkable
class Past(Protocol):
    """What a cache holds of the earlier positions of a sequence; what a layer reads is added to it."""

    def recent(self, place: int, x: Float[Tensor, "B N C"], count: int) -> Float[Tensor, "B count+N C"]:
        """The `count` positions before `x`, 0 where there are none, and `x`; the last `count` of these are kept.

        Args:
            place: Index in the cache, of one convolution of one layer.
            x: Inputs of the convolution at the next N positions.
            count: Number of earlier positions that it reads.
        """
        ...


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

    attends: ClassVar[bool] = False
    """Whether its self-attention is of the kind in the attention slot of the network."""

    keeps_cache: ClassVar[bool] = False
    """Whether a causal one reads the next positions on top of a cache: `forward` then takes `past`."""

    crosses: ClassVar[bool] = False
    """Whether it may be a layer of the decoder of an encoder-decoder: `forward` then takes the encoder output."""

    needs_final_norm: ClassVar[bool] = False
    """Whether a norm follows the last layer: its own norms are at the beginning of residuals."""

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

        Blocks with `keeps_cache` also take `past`, None without a cache; those with `crosses`, `encoder_output`
        (B, M, d) and `encoder_mask` (B, M), both by keyword.

        Args:
            x: The sequence (B, N, d); on top of a cache, its last N positions.
            mask: True = keep, on top of a cache for the earlier positions too. Outputs at kept positions depend neither
                on masked ones nor on how many of them stand before and behind a text; outputs at masked positions are
                finite and mean nothing.
            memory: State (B, S, d) returned by the layer before, of the same kind; None in the first layer.

        Returns:
            The sequence, and the state for the next layer; None for blocks without one.
        """
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Draw the block's own parameters anew (none here), those of its linear layers left out."""
