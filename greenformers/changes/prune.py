"""Fewer attention heads and feed-forward neurons on one budget, without training. Kwon 2022, arXiv:2204.09656.

What a head or a neuron costs is counted or measured; those go first that outputs depend on least for their cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from greenformers.changes._contract import option
from greenformers.changes._removal import Removal

if TYPE_CHECKING:
    from torch import nn

OF = ("flops", "parameters", "latency")


@dataclass(frozen=True)
class Prune(Removal):
    """Fewer attention heads and neurons on one budget: of FLOPs, parameters, or seconds as measured."""

    keep: float = option(0.5, "Share of the cost of all heads and neurons to keep, in (0, 1).", "--prune")
    of: str = option("flops", "Cost: flops, parameters, or latency, which is measured.", "--prune-of")
    multiple: int = option(8, "Numbers of neurons are multiples of this number.")

    order: ClassVar[int] = 6
    removes_heads: ClassVar[bool] = True
    removes: ClassVar[Sequence[str]] = ("heads", "neurons")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.of not in OF:
            raise ValueError(f"of must be of {', '.join(OF)}; got {self.of!r}")

    @property
    def label(self) -> str:
        """The share and its cost, as in "prune 0.5" or "prune 0.5 of latency"."""
        return super().label + ("" if self.of == "flops" else f" of {self.of}")

    @classmethod
    def searched(cls, model: "nn.Module", *, length: int, causal: bool, heals: bool) -> "Sequence[Prune]":
        """Nine tenths of the cost of heads and neurons, and so on down to two tenths."""
        return [cls(keep=tenths / 10) for tenths in range(9, 1, -1)]

    def products_left(self, model: "nn.Module") -> float:
        """The share of the cost of heads and neurons that is kept."""
        return self.keep

    @classmethod
    def describe(cls, model: "nn.Module") -> Any:
        """Nothing: what is left is described by the changes `heads` and `neurons`."""
        return None
