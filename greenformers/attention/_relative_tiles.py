"""Softmax attention whose scores have a part by distance, (q_i + u) k_j + (q_i + v) F_{i-j}, in tiles.

No scores of all pairs exist: a tile of b queries reads w keys at a time, with a running maximum and sum. Its products
with the b + w - 1 rows of F that it needs are read as a view whose rows are one number shorter than they are, which
moves each row by its query. Weights are computed again for the backward pass (Dao 2022, arXiv:2205.14135, algorithm 4),
where the same view takes the gradient back to the products with F.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from greenformers._torch import is_fake
from greenformers.attention._aligned import in_one_piece, is_compiled
from greenformers.attention._base2 import LN2, exp2_
from greenformers.attention._contract import on_gpu
from greenformers.attention._dropout import drop_


class Sizes(NamedTuple):
    """Queries of a tile, keys that it reads at once, and heads that are computed at once."""

    queries: int
    keys: int
    heads: int


ON_CPU, ON_GPU, COUNTED = Sizes(128, 1024, 4), Sizes(1024, 2048, 64), Sizes(256, 2048, 64)
"""Scores that fit a cache; few large products; and where the work is only counted, fewer parts to count."""


def sizes_of(x: Tensor) -> Sizes:
    """Sizes of tiles for the device of a tensor."""
    return COUNTED if is_fake(x) else ON_GPU if on_gpu(x) else ON_CPU


HIDDEN = -1e30
"""Score of a key that is not seen; finite, so that the softmax of a row without keys is defined."""

FEW = 16
"""Number of queries up to which all scores are computed at once."""


def in_tiles(q: Float[Tensor, "B H N D"], keys: int) -> bool:
    """Whether the scores of queries and so many keys are computed for some pairs at a time.

    Compiled, those that fit a tile are left to the compiler, which fuses what is done to them.
    """
    if in_one_piece(q):
        return False
    (B, H, N, _), sizes = q.shape, sizes_of(q)
    return not is_compiled() or B * H * N * keys > sizes.queries * sizes.keys * sizes.heads


class How(NamedTuple):
    """What a call is told besides tensors.

    Attributes:
        causal: Whether a query, of the last positions, sees no later key.
        dropout: Probability of dropping a weight.
        seed: Seed of what is dropped.
        window: Distance of the farthest key that a query reads; None: it reads all.
    """

    causal: bool
    dropout: float
    seed: int
    window: int | None = None


class _Tile(NamedTuple):
    """Some heads of a text, queries `rows` of it, and keys `block`, whose first row of F is `first`."""

    heads: slice
    factors: slice
    text: int
    rows: slice
    block: slice
    first: int


def _tiles(
    B: int, H: int, N: int, M: int, how: How, sizes: Sizes
) -> Iterator[tuple[slice, slice, int, slice, list[_Tile]]]:
    """Tiles of queries of all texts and heads; of each the blocks of keys that it reads."""
    for text in range(B):
        for first in range(0, H, sizes.heads):
            factors = slice(first, min(first + sizes.heads, H))
            heads = slice(text * H + factors.start, text * H + factors.stop)
            for row in range(0, N, sizes.queries):
                rows = slice(row, min(row + sizes.queries, N))
                end, start = M - N + rows.stop if how.causal else M, 0
                if how.window is not None:
                    start, end = max(0, M - N + row - how.window), min(end, M - N + rows.stop + how.window)
                blocks = [slice(at, min(at + sizes.keys, end)) for at in range(start, end, sizes.keys)]
                # The distance of query i and key j is row N - 1 - i + j of F: of the last query it is the first.
                tiles = [_Tile(heads, factors, text, rows, block, N - rows.stop + block.start) for block in blocks]
                yield heads, factors, text, rows, tiles


class _Scores:
    """Scores to the base 2 of a tile and a block of keys, in storage that is used again.

    Args:
        k: Keys (B H, M, D).
        F: Products of W_R with distances (H, t, D), in falling order, with enough rows behind for hidden keys.
        bias: Bias of the keys of each text (B, M), which hides masked ones; None: all are kept.
        how: What the call is told besides.
        past: Number of positions before the first query.
    """

    def __init__(self, k: Tensor, F: Tensor, bias: Tensor | None, how: How, past: int) -> None:
        self.k, self.F, self.bias, self.how, self.past = k, F, bias, how, past
        queries, keys, heads = sizes_of(k)
        heads = min(heads, len(F))
        self.room = [k.new_empty(heads * queries * keys) for _ in range(2)]
        self.strip_room = k.new_empty(heads * queries * (keys + queries + 16))
        later = torch.ones(queries, queries, dtype=torch.bool, device=k.device).triu(1)
        self.later = torch.zeros(queries, queries, dtype=k.dtype, device=k.device).masked_fill_(later, -1e30)

    def __call__(self, qu: Tensor, qv: Tensor, tile: _Tile) -> Tensor:
        """Scores (h, b, w) of queries (h, b, D) with both biases, scaled."""
        scores = self.product(qu, self.k[tile.heads, tile.block].mT, 0)
        strip = self.strip(qv, tile)
        torch.bmm(qv, self.distances(tile, strip.shape[2]).mT, out=strip)
        scores.add_(moved(strip, scores.shape[2]))
        if self.bias is not None:
            scores.add_(self.bias[tile.text, tile.block])
        if self.how.causal and tile.block.stop > self.past + tile.rows.start + 1:
            self._hide_later(scores, tile)
        return scores

    def product(self, a: Tensor, b: Tensor, place: int) -> Tensor:
        """The product of two batches of matrices, in one of two places of the storage."""
        shape = (*a.shape[:2], b.shape[2])
        out: Tensor = torch.bmm(a, b, out=self.room[place][: math.prod(shape)].view(shape))
        return out

    def strip(self, q: Tensor, tile: _Tile) -> Tensor:
        """Storage of the products with F (h, b, t), t >= b + w - 1 a multiple of 16: other sizes are slow."""
        shape = (*q.shape[:2], -(-(q.shape[1] + tile.block.stop - tile.block.start - 1) // 16) * 16)
        return self.strip_room[: math.prod(shape)].view(shape)

    def distances(self, tile: _Tile, count: int) -> Float[Tensor, "h t D"]:
        """The rows of F of a tile."""
        return self.F[tile.factors, tile.first : tile.first + count]

    def _hide_later(self, scores: Tensor, tile: _Tile) -> None:
        """Hide what is later than its query: of the last keys, which are the queries themselves."""
        first = self.past + tile.rows.start - tile.block.start  # the place of the first query among these keys
        columns = slice(max(0, first), scores.shape[2])
        of = slice(columns.start - first, columns.stop - first)
        scores[..., columns] += self.later[: scores.shape[1], of]


def moved(strip: Float[Tensor, "h b t"], width: int) -> Float[Tensor, "h b w"]:
    """A view: row r of b begins at place b - 1 - r."""
    h, b, t = strip.shape
    return strip.as_strided((h, b, width), (b * t, t - 1, 1), strip.storage_offset() + b - 1)


def forward(
    qu: Tensor, qv: Tensor, k: Tensor, v: Tensor, F: Tensor, bias: Tensor | None, how: How
) -> tuple[Tensor, Tensor]:
    """Outputs (B, H, N, D), and the base-2 logarithms of the sums of weights (B H, N)."""
    (B, H, N, _), M, shape = qu.shape, k.shape[2], qu.shape
    qu, qv, k, v = (x.flatten(0, 1) for x in (qu, qv, k, v))
    out, lse = torch.empty_like(qu), qu.new_empty(B * H, N)
    scores, seed = _Scores(k, padded(F), bias, how, M - N), how.seed
    for heads, _, _, rows, tiles in _tiles(B, H, N, M, how, sizes_of(k)):
        own_u, own_v = qu[heads, rows].contiguous(), qv[heads, rows].contiguous()
        top = total = mixed = None
        for tile in tiles:
            weights = scores(own_u, own_v, tile)
            highest = weights.amax(-1, keepdim=True)
            if top is not None:
                highest = torch.maximum(top, highest)
            weights = exp2_(weights.sub_(highest))
            sums = weights.sum(-1, keepdim=True)
            seed = drop_(weights, how.dropout, seed)
            values = v[heads, tile.block]
            if top is None or total is None or mixed is None:
                total, mixed = sums, torch.bmm(weights, values)
            else:
                fall = (top - highest).exp2_()
                total = total.mul_(fall).add_(sums)
                mixed = mixed.mul_(fall).baddbmm_(weights, values)
            top = highest
        assert top is not None and total is not None and mixed is not None  # noqa: PT018 - a tile has keys
        out[heads, rows] = mixed.div_(total)
        lse[heads, rows] = (top + total.log2())[..., 0]
    return out.view(shape), lse


def backward(
    qu: Tensor, qv: Tensor, k: Tensor, v: Tensor, F: Tensor, bias: Tensor | None, how: How,
    out: Tensor, lse: Tensor, dout: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of qu, qv, k, v and F."""
    (B, H, N, _), M = qu.shape, k.shape[2]
    qu, qv, k, v, out, dout = (x.flatten(0, 1) for x in (qu, qv, k, v, out, dout))
    delta = (dout * out).sum(-1, keepdim=True)
    wide = padded(F)
    dqu, dqv = torch.empty_like(qu), torch.empty_like(qv)
    dk, dv, dF = torch.zeros_like(k), torch.zeros_like(v), torch.zeros_like(wide)
    scores, seed = _Scores(k, wide, bias, how, M - N), how.seed
    for heads, factors, _, rows, tiles in _tiles(B, H, N, M, how, sizes_of(k)):
        own_u, own_v, grad = (x[heads, rows].contiguous() for x in (qu, qv, dout))
        of_u, of_v = torch.zeros_like(own_u), torch.zeros_like(own_v)
        for tile in tiles:
            weights = exp2_(scores(own_u, own_v, tile).sub_(lse[heads, rows, None]))
            of_scores = scores.product(grad, v[heads, tile.block].mT, 1)
            seed_after = drop_(of_scores, how.dropout, seed)
            of_scores.sub_(delta[heads, rows]).mul_(weights)
            drop_(weights, how.dropout, seed)
            seed = seed_after
            dv[heads, tile.block] += torch.bmm(weights.mT, grad)
            of_u.baddbmm_(of_scores, k[heads, tile.block])
            dk[heads, tile.block] += torch.bmm(of_scores.mT, own_u)
            strip = scores.strip(own_v, tile).zero_()
            moved(strip, of_scores.shape[2]).copy_(of_scores)
            of_v.baddbmm_(strip, scores.distances(tile, strip.shape[2]))
            dF[factors, tile.first : tile.first + strip.shape[2]] += torch.bmm(strip.mT, own_v)
        dqu[heads, rows], dqv[heads, rows] = of_u, of_v
    dqu, dqv, dk, dv = (x.view(B, H, *x.shape[1:]) for x in (dqu, dqv, dk, dv))
    return dqu.mul_(LN2), dqv.mul_(LN2), dk.mul_(LN2), dv, dF[:, : F.shape[1]].mul_(LN2)


def padded(F: Float[Tensor, "H t D"]) -> Float[Tensor, "H T D"]:
    """With rows behind the last for keys that are hidden as later than their query, and for whole multiples of 16."""
    return torch.nn.functional.pad(F, (0, 0, 0, sizes_of(F).queries + 16))
