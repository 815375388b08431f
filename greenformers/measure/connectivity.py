"""The connectivity matrix of an attention pattern, its density, and the FLOPs of attention over it.

Fournier 2021, arXiv:2103.14636, figure 6: cell (i, j) is filled where position i attends to position j.
"""

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from greenformers.attention import Shape, attention_class, build, names
from greenformers.attention._block_sparse import BlockSparse
from greenformers.measure.flops import flops

KINDS = ("window or block", "global", "random or summary")
"""Kinds of visible pairs: a key beside the query's tile, a pair with a global position, a key from elsewhere."""
LONGEST = 16_384
"""Longest sequence whose matrices are computed."""
CELLS = 512
"""Largest number of cells along a side of a picture."""


class Connectivity(NamedTuple):
    """Connectivity matrix of one layer and head.

    Attributes:
        layer: Number of the layer, from 0.
        head: Number of the head, from 0.
        share: Share of visible pairs in each cell of the matrix, by kind (3, P, P); P = N up to N = 512.
        pairs: Number of visible pairs.
    """

    layer: int
    head: int
    share: Float[Tensor, "3 P P"]
    pairs: int


class Matrices(NamedTuple):
    """Connectivity matrices of all heads and layers of a network at one length.

    Attributes:
        name: Name of the pattern.
        length: Positions N.
        heads: Matrix of each head, layer by layer.
        flops: FLOPs of each layer's attention on one sequence.
        dense: FLOPs of one layer's full attention on one sequence.
    """

    name: str
    length: int
    heads: list[Connectivity]
    flops: list[int]
    dense: int

    @property
    def density(self) -> float:
        """Share of all pairs that are visible, over all heads and layers."""
        return sum(head.pairs for head in self.heads) / (len(self.heads) * self.length**2)


def patterns() -> list[str]:
    """Names of the attention mechanisms that are a pattern of visible pairs."""
    return [name for name in names() if issubclass(attention_class(name), BlockSparse)]


def connectivity(
    name: str,
    length: int,
    options: Mapping[str, Any],
    *,
    heads: int = 1,
    layers: int = 1,
    head_dim: int = 64,
    causal: bool = False,
    progress: Callable[[str, float], None] = lambda *_: None,
) -> Matrices:
    """The connectivity matrices of a pattern, in every head and layer.

    Args:
        name: Name of the pattern, one of `patterns()`.
        length: Positions N.
        options: Options of the mechanism.
        heads: Number of heads H.
        layers: Number of layers L.
        head_dim: Width D of a head, for the FLOPs.
        causal: Whether position i sees only positions up to i.
        progress: Function that is called with a text and the share that is done.

    Raises:
        ValueError: Raised where the mechanism is not a pattern, or a number is out of range.
    """
    if name not in patterns():
        raise ValueError(f"pattern must be one of {', '.join(patterns())}; got {name!r}")
    if not 1 <= length <= LONGEST:
        raise ValueError(f"length must be in 1..{LONGEST}, got {length}")
    if layers < 1:
        raise ValueError(f"layers must be at least 1, got {layers}")
    matrices, counts = [], []
    for layer in range(layers):
        shape = Shape(heads, head_dim, length, causal=causal, layer=layer, layers=layers)
        mechanism = _built(name, shape, options)
        for head in range(heads):
            matrices.append(_of_head(mechanism, length, layer, head))
            progress("matrices", len(matrices) / (layers * heads))
        counts.append(_flops(mechanism, length))
    return Matrices(name, length, matrices, counts, _flops(build("full", shape), length))


def _built(name: str, shape: Shape, options: Mapping[str, Any]) -> BlockSparse:
    try:
        mechanism = build(name, shape, **options)
    except TypeError as error:
        raise ValueError(f"option must be of {name}, got {', '.join(options)}: {error}") from error
    assert isinstance(mechanism, BlockSparse)
    return mechanism


def _of_head(mechanism: BlockSparse, length: int, layer: int, head: int) -> Connectivity:
    is_global = mechanism.is_global(length, torch.device("cpu"))
    side = ceil(length / CELLS)
    cells = ceil(length / side)
    share, pairs = torch.zeros(3, cells, cells), 0
    front, back = mechanism.ends(length)
    tilings = mechanism.tilings(length - front - back)
    mine = [t for t in tilings if t.heads[0] <= head < (mechanism.shape.heads if t.heads[1] is None else t.heads[1])]
    j = torch.arange(length)
    for row in range(cells):  # never all N x N pairs at once
        i = torch.arange(row * side, min(length, (row + 1) * side))[:, None]
        visible = mechanism.sees(i, j, head, is_global, length)
        wide = is_global[i] | is_global[j]
        near = torch.zeros_like(wide)
        for tiling in mine:
            near |= tiling.meets(i - front, j - front) & mechanism.near(i, j, head, length)
        if not mine:
            near = torch.ones_like(wide)
        for kind, part in enumerate((near & ~wide, wide, ~near & ~wide)):
            seen = torch.nn.functional.pad((visible & part).sum(0), (0, cells * side - length))
            share[kind, row] = seen.view(cells, side).sum(1)
        pairs += int(visible.sum())
    rows = torch.full((cells,), side)
    rows[-1] = length - side * (cells - 1)
    return Connectivity(layer, head, share / (rows[:, None] * rows), pairs)


def _flops(mechanism: Any, length: int) -> int:
    shape = mechanism.shape
    x = torch.empty(1, shape.heads, length, shape.head_dim, device="meta")
    with torch.no_grad():
        return flops(lambda: mechanism.to("meta")(x, x, x))
