"""The graph of the BP-Transformer, as index tensors for tiles of tokens: the nodes they see, and labels of edges.

All tokens of a tile see nearly the same spans, so that their scores are one product of the tile and of the nodes that
any of them sees; what a token does not see is hidden.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from greenformers._torch import is_fake

TILE = 32
"""Tokens of a tile, a power of 2: more of them share a gathered key, and more scores are hidden."""


@dataclass(frozen=True)
class Graph:
    """The graph of n tokens and S spans, numbered tokens first, then level by level.

    Attributes:
        levels: Number of nodes of each level, tokens first.
        tile: Number T of tokens of a tile.
        seen: The W nodes that the tokens of each tile see.
        labels: Label of the edge from each token of a tile to these nodes; -1 where a token does not see a node.
        spans: The R nodes above each tile: those of the levels that fit in it, then one node of each higher level.
        covers: Which tokens of the tile these R nodes cover.
    """

    levels: tuple[int, ...]
    tile: int
    seen: Int[Tensor, "tiles W"]
    labels: Int[Tensor, "tiles T W"]
    spans: Int[Tensor, "tiles R"]
    covers: Bool[Tensor, "R T"]

    @property
    def low(self) -> int:
        """The highest level whose spans fit in a tile."""
        return self.tile.bit_length() - 1


def levels_of(n: int) -> tuple[int, ...]:
    """Number of nodes of each level: n, then half of the level below, rounded up, until there is one."""
    levels = [n]
    while levels[-1] > 1:
        levels.append((levels[-1] + 1) // 2)
    return tuple(levels)


def graph(x: Tensor, k: int, clip: int, causal: bool) -> Graph:
    """The graph of the tokens of x, computed once for all layers.

    Args:
        x: Tokens (B, N, d); only their number and device are read.
        k: Number of nodes a token sees on each side, per level.
        clip: Highest level with labels of its own.
        causal: Whether a token sees nothing on its right.
    """
    # Graphs of fake tensors are not cached, or they would be returned for real ones.
    make = _graph.__wrapped__ if is_fake(x) else _graph
    return make(x.shape[1], k, clip, causal, TILE, x.device)


@lru_cache(maxsize=64)  # batches of texts have many lengths
def _graph(n: int, k: int, clip: int, causal: bool, tile: int, device: torch.device) -> Graph:
    # Tensors created in inference mode could not be saved for a later backward pass.
    with torch.inference_mode(False):
        levels = levels_of(n)
        tile = min(tile, 1 << (len(levels) - 1))
        seen, labels = _tokens(levels, k, clip, causal, tile)
        spans, covers = _spans(levels, tile)
        return Graph(levels, tile, *(x.to(device) for x in (seen, labels, spans, covers)))


def _range(*ends: int) -> Tensor:
    return torch.arange(*ends, device="cpu")


def _tokens(levels: tuple[int, ...], k: int, clip: int, causal: bool, tile: int) -> tuple[Tensor, Tensor]:
    """The nodes that the tokens of each tile see, and the labels of these edges."""
    tiles = -(-levels[0] // tile)
    i = _range(tiles * tile).view(tiles, tile)  # the last positions may be beyond the n tokens
    seen, labels, first = [], [], 0
    # The root alone covers every token, and is seen by none of them: it covers that token too.
    for level, (size, places) in enumerate(
        zip(levels[: max(1, len(levels) - 1)], _offsets(k, tile, causal), strict=False)
    ):
        offsets = torch.tensor([o for o in places if -size < o < size], dtype=torch.int64, device="cpu")
        j = (_range(tiles)[:, None] * tile >> level) + offsets  # (tiles, W)
        label = torch.full((tiles, tile, len(offsets)), -1, dtype=torch.int32, device="cpu")
        i_column, j_row = i[..., None], j[:, None]
        if level == 0:
            label.masked_fill_(i_column == j_row, 0)
        # The left is the right of the mirrored sequence, in which -1 - j stands for j at every level.
        sides = [(-1 - i_column, -1 - j_row, 1)] + ([] if causal else [(i_column, j_row, 2)])
        for of_token, of_node, kind in sides:
            _label_(label, of_token, of_node, level, kind, k, clip)
        labels.append(label.masked_fill_((j_row < 0) | (j_row >= size) | (i_column >= levels[0]), -1))
        seen.append(first + j.clamp(0, size - 1))
        first += size
    return torch.cat(seen, 1), torch.cat(labels, 2)


def _label_(label: Tensor, i: Tensor, j: Tensor, level: int, kind: int, k: int, clip: int) -> None:
    """Write the labels of the nodes j of a level that tokens i see on their right.

    The node that comes next after level l is q_l = floor(q_{l-1} / 2) + k, from q_0 = i + 1 + k; of level l are seen
    those before it from ceil(q_{l-1} / 2) on, and q_l itself where it is odd, in its parent's place.
    """
    child_before: Tensor | int = 0
    q = i + 1 + k
    for _ in range(level):
        child_before, q = q & 1, (q >> 1) + k
    place = j - q + k  # the first is 1 where a child has place 0
    own, child = (place >= child_before) & (place < k), (place == k) & (q & 1 == 1)
    of_level, of_next = ((2 * k + 1) * min(level + up, clip) + kind for up in (0, 1))
    label.copy_(torch.where(own, of_level + 2 * place, torch.where(child, of_next, label)))


def _offsets(k: int, tile: int, causal: bool) -> Iterator[list[int]]:
    """For each level, offsets from the first node of a tile to all nodes that some token of the tile may see."""
    low = high = k + 1  # bounds of q_l - floor(i / 2^l)
    near, level = 0, 0  # smallest offset of a node on the right
    while True:
        width = max(1, tile >> level)
        left, right = range(-high, width - near), range(near, width + high)
        yield sorted({*left, *(() if causal else right)})
        near, level = (low + 1) // 2, level + 1
        low, high = k + low // 2, k + (high + 1) // 2


def _spans(levels: tuple[int, ...], tile: int) -> tuple[Tensor, Tensor]:
    """The spans above each tile, and which of its tokens they cover."""
    t = _range(-(-levels[0] // tile))[:, None]
    spans, covers, first = [t[:, :0]], [torch.zeros(0, tile, dtype=torch.bool, device="cpu")], levels[0]
    for level, size in enumerate(levels[1:], 1):
        within = _range(max(1, tile >> level))
        spans.append(first + ((t * tile >> level) + within).clamp(max=size - 1))
        covers.append((_range(tile) >> level) == within[:, None])
        first += size
    return torch.cat(spans, 1), torch.cat(covers)
