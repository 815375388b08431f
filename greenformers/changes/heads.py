"""Fewer attention heads, without training. Michel 2019, arXiv:1905.10650; Kwon 2022, arXiv:2204.09656.

Heads are found by what they compute, see `greenformers.solve.heads`; heads that share keys and values go together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from greenformers.changes._contract import option
from greenformers.changes._removal import Removal


@dataclass(frozen=True)
class Heads(Removal):
    """Fewer attention heads, those first that outputs depend on least; the others make up for them."""

    keep: float = option(0.5, "Share of the attention heads to keep, in (0, 1).", "--heads")

    order: ClassVar[int] = 5
    removes_heads: ClassVar[bool] = True
    removes: ClassVar[Sequence[str]] = ("heads",)
