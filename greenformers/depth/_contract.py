"""The contract of the depth slot: a kind calls the layers of a stack, as many for each position as it chooses."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from greenformers.depth._running import Running

Step = Callable[[int, Float[Tensor, "B N d"], Running | None], Tensor]
"""Function of the number n of a layer, from 0, its input at all positions and the positions that are computed: it
returns the output at these, (b, S, d), or at all positions (B, N, d) where they are None. A stack on top of a cache
adds keys and values of all positions to it, whichever are computed."""


@dataclass(frozen=True)
class Size:
    """Sizes of the network around a kind of depth, which it is built with.

    Attributes:
        width: Width d of the network.
        steps: Number n_max of layers of the stack.
        positions: Whether positions are encoded by this kind of depth, where it does that (`Depth.positions`).
        make_norm: Function that makes a norm over d channels; None: layer norm.

    Raises:
        ValueError: A number is below 1.
    """

    width: int
    steps: int
    positions: bool = True
    make_norm: Callable[[], nn.Module] | None = None

    def __post_init__(self) -> None:
        for name in ("width", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def norm(self) -> nn.Module:
        """A norm over d channels."""
        return nn.LayerNorm(self.width) if self.make_norm is None else self.make_norm()


class Exits(NamedTuple):
    """States that a head learns to score, in training.

    Attributes:
        states: States (B, N, d), behind the norm of their exit.
        context: Mean of the encoder output (B, d), where there is an encoder.
    """

    states: tuple[Float[Tensor, "B N d"], ...]
    context: Float[Tensor, "B d"] | None


class Gone(NamedTuple):
    """What comes out of a stack.

    Attributes:
        x: Its output (B, N, d).
        steps: Number of layers that each position went through (B, N), 0 at padding.
        loss: In training, the weighted loss of a kind of depth that has one; else None.
        exits: In training, what the head learns to score, of kinds with exits; else None.
        passes: How often the stack was gone through, each time by a path of its own, of whose losses the mean counts.
    """

    x: Float[Tensor, "B N d"]
    steps: Int[Tensor, "B N"]
    loss: Float[Tensor, ""] | None
    exits: Exits | None = None
    passes: int = 1


class Depth(nn.Module):
    """Base of every kind of depth but `stacked` and `shared`, which go through all layers one after the other."""

    shares: ClassVar[bool] = False
    """Whether all layers have the parameters of the first."""

    positions: ClassVar[Literal["model", "own"]] = "model"
    """What encodes positions where the network names no kind: its position slot, or the kind of depth itself."""

    exits: ClassVar[bool] = False
    """Whether it leaves a decoder by exits: `forward` then takes `score`, a function from states to scores of tokens or
    None, and `context`, the mean of the encoder output (B, d) or None; and `loss_of` is the loss of all exits."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size

    def forward(
        self,
        x: Float[Tensor, "B N d"],
        step: Step,
        *,
        mask: Bool[Tensor, "B N"] | None = None,
        positions: Int[Tensor, "b N"] | None = None,
        keeps: bool = False,
    ) -> Gone:
        """Go through the layers.

        Args:
            x: Input of the stack (B, N, d).
            step: Function that computes a layer.
            mask: True = keep (B, N). Outputs at kept positions do not depend on masked ones; those at masked positions
                are finite and mean nothing.
            positions: Positions of x, from 0; None: 0 to N - 1.
            keeps: Whether later positions will read keys and values of every layer, from a cache.
        """
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Draw its own parameters anew (none here)."""
