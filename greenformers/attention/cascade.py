"""Cascade Transformer. Wang 2020, arXiv:2003.02245; survey IV-A: windows that grow with the layer.

Layer l, from 0, sees abs(i - j) < b m^l: time O(N b m^l D), memory O(N D).
The fast form takes queries in tiles, each beside the keys they may see (`_block_sparse.py`).
"""

from torch import Tensor

from greenformers.attention._block_sparse import BlockSparse
from greenformers.attention._contract import Shape
from greenformers.attention._reference import over_pairs
from greenformers.attention._tiles import Tiling, band

FARTHEST = 2**31
"""Windows beyond any text are not counted."""


def formula(mechanism: "Cascade", i: int, j: int, head: int, length: int) -> bool:
    """Whether i sees j, before the causal mask: abs(i - j) < b m^l."""
    return abs(i - j) < mechanism.base * mechanism.cardinal**mechanism.shape.layer


reference = over_pairs(formula)


class Cascade(BlockSparse):
    """A window of 2 b m^l - 1 positions in layer l.

    Args:
        shape: Heads, width, length and layer.
        base: Base window size b.
        cardinal: Factor m of the window from layer to layer.
        dropout: Probability of dropping an attention weight in training.

    Raises:
        ValueError: The attention is cross-attention, or an option is out of range.
    """

    rank_option = "base"
    last_shares_keys = True

    def __init__(self, shape: Shape, *, base: int = 64, cardinal: int = 2, dropout: float = 0.0) -> None:
        super().__init__(shape, dropout=dropout)
        for name, value in (("base", base), ("cardinal", cardinal)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.base, self.cardinal = base, cardinal

    @property
    def window(self) -> int:
        """Number of neighbours seen on either side."""
        return min(self.base * self.cardinal**self.shape.layer, FARTHEST) - 1

    def visible(  # noqa: D102
        self, i: Tensor, j: Tensor, head: int | Tensor, is_global: Tensor, length: int
    ) -> Tensor:
        return (i - j).abs() <= self.window

    def seen_by_last(self, keys: int) -> int | None:  # noqa: D102
        return min(keys, self.window + 1)

    def tilings(self, length: int) -> tuple[Tiling, ...]:  # noqa: D102
        return (band(min(self.window, length - 1), causal=self.shape.causal),)
