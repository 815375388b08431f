"""Tiles of a block-sparse pattern: equal groups of queries, each beside the keys that any of them may see."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from greenformers.attention._contract import accurate

SLICE = 2**20
"""Number of scores taken at a time, 4 MiB: few enough for caches, enough to keep several cores at work."""
ROWS = 64
"""Number of queries of a tile where the pattern leaves the choice, half or twice as many for small or large windows:
enough for fast products, few compared with the keys of the window."""

Visible = Callable[[Tensor, Tensor, int], Tensor]
"""Whether queries see keys, by their positions, for one head."""


@dataclass(frozen=True)
class Tiling:
    """A division of the queries of some heads into tiles, and the keys that each tile meets.

    Each residue r below the stride has tiles of its own, of every `stride`-th position from r on.

    Attributes:
        rows: Number b of queries of a tile; tile t begins at position b t.
        left: Number of positions before the tile whose keys it meets; None: all.
        right: Number of positions after the tile whose keys it meets; None: all.
        stride: Distance between neighbouring positions of a tile.
        partial: Keys that not every query of the tile sees, as ranges of positions relative to the first of the tile.
            Visibility between the queries and keys of a tile must be the same in every tile.
        heads: Index of the first head, and of the one after the last.
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
    """The block of the query and some blocks before it; a tile holds several small blocks."""
    together = max(1, ROWS // 2 // block)
    rows = together * block
    partial = range(-before * block if together > 1 else 0, rows)
    return Tiling(rows, before * block, 0, partial=(partial,) if causal or together > 1 else ())


def check_bands(window: int, dilation: int | Sequence[int], heads: int) -> tuple[int, ...]:
    """The dilation of each head.

    Raises:
        ValueError: The window or a dilation is below 1, or the number of dilations is not that of heads.
    """
    if window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    dilations = (dilation,) * heads if isinstance(dilation, int) else tuple(dilation)
    if len(dilations) != heads or min(dilations) < 1:
        raise ValueError(f"dilation must be at least 1, one number or {heads} of them, got {dilation}")
    return dilations


def within(i: Tensor, j: Tensor, window: int, dilation: Sequence[int], head: int | Tensor) -> Tensor:
    """abs(i - j) <= w d and i - j a multiple of d, for the dilation d of a head."""
    # A head in a tensor is looked up by comparisons: a traced kernel cannot create a tensor of dilations.
    d = dilation[head] if isinstance(head, int) else sum((head == at) * d for at, d in enumerate(dilation))
    return ((i - j).abs() <= window * d) & ((i - j) % d == 0)


def bands(window: int, dilation: Sequence[int], *, causal: bool) -> tuple[Tiling, ...]:
    """One band for each run of heads with equal dilation."""
    tilings, first = [], 0
    for d, run in groupby(dilation):
        end = first + len(list(run))
        tilings.append(band(window, causal=causal, stride=d, heads=(first, end)))
        first = end
    return tuple(tilings)


class Group(NamedTuple):
    """Tiles of equal sizes: `tiles` of them, from tile `first` on, in each of `classes` classes of positions.

    rows and keys: their numbers in a tile. q_start and k_start: indices of the first of them. bias: start and values
    (rows, n) of the bias of some keys, 0 where visible, else -inf. merge: whether an earlier group has these queries.
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
    """All tiles of queries, which are the last of the keys' positions; tiles at the edges are groups of their own.

    Keys that two tilings of the same heads both meet are left to the later tiling.
    """
    laid_out: list[Group] = []
    for at, tiling in enumerate(tilings):
        later = [candidate for candidate in tilings[at + 1 :] if candidate.heads == tiling.heads]
        merge = any(candidate.heads == tiling.heads for candidate in tilings[:at])

        def own(i: Tensor, j: Tensor, head: int, later: Sequence[Tiling] = later) -> Tensor:
            seen = visible(i, j, head)
            for candidate in later:
                seen = seen & ~candidate.meets(i, j)
            return seen

        for residue, count in _classes(tiling.stride, keys - queries, keys):
            laid_out += _of_classes(tiling, residue, count, queries, keys, own, like, merge=merge)
    return laid_out


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
