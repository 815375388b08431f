"""Fewer neurons in feed-forward layers, without training. Kwon 2022, arXiv:2204.09656.

Layers are found by what they compute, see `greenformers.solve.feed_forward`, with gate and up projection as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from greenformers.changes._contract import option
from greenformers.changes._removal import Removal


@dataclass(frozen=True)
class Neurons(Removal):
    """Fewer neurons in feed-forward layers, those first that outputs depend on least; the others make up for them."""

    keep: float = option(0.5, "Share of the neurons of feed-forward layers to keep, in (0, 1).", "--neurons")
    multiple: int = option(8, "Numbers of neurons are multiples of this number.")

    order: ClassVar[int] = 7
    removes: ClassVar[Sequence[str]] = ("neurons",)
