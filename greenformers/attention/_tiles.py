"""Tiles of a block-sparse pattern: equal groups of queries, each beside the keys that any of them may see."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from greenformers.attention._contract import accurate

SLICE = 2**20
"""Scores taken at a time, 4 MiB of them: few enough for caches, and enough to keep several cores at work."""
ROWS = 64
"""Queries of a tile where the pattern leaves the choice, half or twice as many where its window is small or large:
enough for fast products, few beside the window's keys."""

Visible = Callable[[Tensor, Tensor, int], Tensor]
"""Whether queries see keys, by their positions, for one head."""


@dataclass(frozen=True)
class Tiling:
    """How the queries of some heads are taken together, and which keys a tile of them meets.

    Positions are those of every `stride`-th position from r on, for each r below the stride by itself.

    Attributes:
        rows: b, queries of a tile; tile t begins at position b t.
        left: positions before the tile whose keys it meets; None: all.
        right: positions after it; None: all.
        stride: distance of neighbouring positions.
        partial: keys that not every query of the tile sees, as ranges of positions relative to the tile's first. What
            is visible between the queries and keys of a tile must be the same in every tile.
        heads: the first head, and one after the last.
    """

    rows: int
    left: int | None
    right: int | None
    stride: int = 1
    partial: tuple[range, ...] = ()
    heads: tuple[int, int | None] = (0, None)

    def meets(self, i: Tensor, j: Tensor) -> Tensor:
        """Whether the key at j is beside the tile of the query at i."""
        tile, key = i // self.stride // self.rows * self.rows, j // self.stride
        met = (i - j) % self.stride == 0
        if self.left is not None:
            met = met & (key >= tile - self.left)
        return met if self.right is None else met & (key < tile + self.rows + self.right)


def band(window: int, *, causal: bool, stride: int = 1, heads: tuple[int, int | None] = (0, None)) -> Tiling:
    """abs(i - j) <= window, one side of it where causal, in steps of the stride."""
    rows = 2 * ROWS if window >= 2 * ROWS else ROWS if window >= ROWS // 2 else ROWS // 2
    right = 0 if causal else window
    partial = (range(-window, rows - window), range(right, rows + right))
    return Tiling(rows, window, right, stride, partial, heads)


def blocks_of(block: int, *, before: int, causal: bool) -> Tiling:
    """The own block and some before it; several small blocks are taken together."""
    together = max(1, ROWS // 2 // block)
    rows = together * block
    partial = range(-before * block if together > 1 else 0, rows)
    return Tiling(rows, before * block, 0, partial=(partial,) if causal or together > 1 else ())


def check_bands(window: int, dilation: int | Sequence[int], heads: int) -> tuple[int, ...]:
    """The dilation of each head.

    Raises:
        ValueError: the window or a dilation is below 1, or there are not as many as heads.
    """
    if window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    each = (dilation,) * heads if isinstance(dilation, int) else tuple(dilation)
    if len(each) != heads or min(each) < 1:
        raise ValueError(f"dilation must be at least 1, one number or {heads} of them, got {dilation}")
    return each


def within(i: Tensor, j: Tensor, window: int, dilation: Sequence[int], head: int | Tensor) -> Tensor:
    """abs(i - j) <= w d and i - j a multiple of d, for the dilation d of a head."""
    # Of a head in a tensor by comparisons: a kernel that is traced can make no table.
    d = dilation[head] if isinstance(head, int) else sum((head == at) * d for at, d in enumerate(dilation))
    return ((i - j).abs() <= window * d) & ((i - j) % d == 0)


def bands(window: int, dilation: Sequence[int], *, causal: bool) -> tuple[Tiling, ...]:
    """One band for each run of heads with equal dilation."""
    found, first = [], 0
    for d, run in groupby(dilation):
        end = first + len(list(run))
        found.append(band(window, causal=causal, stride=d, heads=(first, end)))
        first = end
    return tuple(found)


class Group(NamedTuple):
    """Tiles of equal sizes: `tiles` of them, from tile `first` on, in each of `classes` classes of positions.

    rows and keys: of a tile. q_start and k_start: the first of them, among queries and among keys. bias: for some of
    the keys, from one on, 0 where visible, else -inf (rows, n). merge: the queries have been here before.
    """

    tiling: Tiling
    first: int
    tiles: int
    classes: int
    rows: int
    keys: int
    q_start: int
    k_start: int
    bias: tuple[tuple[int, Tensor], ...]
    merge: bool


def groups(tilings: Sequence[Tiling], queries: int, keys: int, visible: Visible, like: Tensor) -> list[Group]:
    """All tiles of queries that are the last of as many positions as there are keys; those at the edges by themselves.

    What tilings of the same heads both meet is left to the later one.
    """
    found: list[Group] = []
    for at, tiling in enumerate(tilings):
        later = [other for other in tilings[at + 1 :] if other.heads == tiling.heads]
        merge = any(other.heads == tiling.heads for other in tilings[:at])

        def own(i: Tensor, j: Tensor, head: int, later: Sequence[Tiling] = later) -> Tensor:
            seen = visible(i, j, head)
            for other in later:
                seen = seen & ~other.meets(i, j)
            return seen

        for residue, count in _classes(tiling.stride, keys - queries, keys):
            found += _of_classes(tiling, residue, count, queries, keys, own, like, merge=merge)
    return found


def _classes(stride: int, past: int, keys: int) -> list[tuple[int, int]]:
    """Runs (first, number) of residues below the stride with equally many keys, and as many of the past."""
    cuts = sorted({0, min(stride, keys), *(cut for cut in (past % stride, keys % stride) if cut < keys)})
    return [(cut, after - cut) for cut, after in pairwise(cuts)]


def _of_classes(
    tiling: Tiling, residue: int, classes: int, queries: int, keys: int, visible: Visible, like: Tensor, *, merge: bool
) -> Iterator[Group]:
    d, b, past = tiling.stride, tiling.rows, keys - queries
    start, end = max(0, -(-(past - residue) // d)), -(-(keys - residue) // d)  # of the queries
    left, right = (end if side is None else side for side in (tiling.left, tiling.right))

    def group(first: int, tiles: int) -> Iterator[Group]:
        low, high = max(0, first * b - left), min(end, (first + 1) * b + right)
        bottom = min((first + 1) * b, end)
        step = max(1, SLICE // (high - low))  # a tall tile is cut
        for row in range(max(first * b, start), bottom, step):
            rows = min(step, bottom - row)
            bias = []
            for span in tiling.partial:
                span_low, span_high = max(low, first * b + span.start), min(high, first * b + span.stop)
                if span_low < span_high:
                    i = torch.arange(row, row + rows, device=like.device)[:, None] * d
                    j = torch.arange(span_low, span_high, device=like.device) * d
                    bias.append((span_low - low, bias_of(visible(i, j, tiling.heads[0]), like)))
            q_start, k_start = row * d + residue - past, low * d + residue
            yield Group(tiling, first, tiles, classes, rows, high - low, q_start, k_start, tuple(bias), merge)

    whole = range(max(-(-start // b), -(-left // b)), min(end // b, (end - right) // b))
    for tile in range(start // b, -(-end // b)):
        if tile not in whole:
            yield from group(tile, 1)
        elif tile == whole.start:
            yield from group(tile, len(whole))


def bias_of(visible: Tensor, like: Tensor) -> Tensor:
    """0 where visible, else -inf, to be added to scores; of the type `accurate` gives for `like`."""
    zeros = torch.zeros(visible.shape, dtype=accurate(like), device=like.device)
    return zeros.masked_fill(~visible, -torch.inf)
