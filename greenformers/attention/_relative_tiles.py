"""Softmax attention whose scores have a part by distance, (q_i + u) k_j + (q_i + v) F_{i-j}, in tiles.

No scores of all pairs exist: a tile of b queries reads w keys at a time, with a running maximum and sum. Its products
with the b + w - 1 rows of F that it needs are read as a view whose rows are one number shorter than they are, which
moves each row by its query. Weights are computed again for the backward pass (Dao 2022, arXiv:2205.14135, algorithm 4),
where the same view takes the gradient back to the products with F.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from greenformers._gradients import by_hand
from greenformers._torch import is_fake
from greenformers.attention._aligned import in_one_piece, is_compiled
from greenformers.attention._base2 import LN2, exp2_
from greenformers.attention._contract import exact, full_precision, on_gpu
from greenformers.attention._dropout import drop_, new_seed


class Sizes(NamedTuple):
    """Queries of a tile, keys that it reads at once, and heads that are computed at once."""

    queries: int
    keys: int
    heads: int


ON_CPU, ON_GPU, COUNTED = Sizes(128, 512, 8), Sizes(1024, 2048, 64), Sizes(256, 2048, 64)
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


def tiled(
    qu: Float[Tensor, "B H N D"],
    qv: Float[Tensor, "B H N E"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M D"],
    F: Float[Tensor, "H t E"],
    bias: Float[Tensor, "B M"] | None,
    *,
    causal: bool,
    dropout: float = 0.0,
    window: int | Tensor | None = None,
) -> Float[Tensor, "B H N D"]:
    """softmax2(qu k + qv F_{i-j} + bias) v, with queries scaled for the base 2; the others are as `How` says.

    Compiled, it is one operator: traced, a long sequence would be thousands. A window that depends on values is then a
    tensor, which is read as the operator runs.
    """
    out: Tensor
    if is_compiled():
        seed = torch.randint(2**31, ()) if dropout else None
        reach = None if window is None else torch.as_tensor(window)
        out, _ = torch.ops.greenformers.by_distance(qu, qv, k, v, F, bias, seed, reach, causal, dropout)
    else:
        how = How(causal, dropout, new_seed(dropout), None if window is None else int(window))
        out = _Tiled.apply(qu, qv, k, v, F, bias, how)
    return out


def _forward(
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


def _backward(
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


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qu: Tensor, qv: Tensor, k: Tensor, v: Tensor, F: Tensor, bias: Tensor | None, how: How
    ) -> Tensor:
        out, lse = _forward(qu, qv, k, v, F, bias, how)
        ctx.how, ctx.bias = how, bias
        ctx.save_for_backward(qu, qv, k, v, F, out, lse)
        return out

    @staticmethod
    @by_hand(5, lambda ctx, *given: _again(ctx, *given))
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        qu, qv, k, v, F, out, lse = ctx.saved_tensors
        return *_backward(qu, qv, k, v, F, ctx.bias, ctx.how, out, lse, dout), None, None


# An operator takes tensors and numbers only; what a graph does not know when it is made is a tensor.


def _how(seed: Tensor | None, window: Tensor | None, causal: bool, dropout: float) -> How:
    return How(causal, dropout, 0 if seed is None else int(seed), None if window is None else int(window))


@torch.library.custom_op("greenformers::by_distance", mutates_args=())
def _operator(
    qu: Tensor, qv: Tensor, k: Tensor, v: Tensor, F: Tensor, bias: Tensor | None, seed: Tensor | None,
    window: Tensor | None, causal: bool, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    with full_precision(qu):
        return _forward(qu, qv, k, v, F, bias, _how(seed, window, causal, dropout))


@_operator.register_fake
def _(qu: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    heads = qu.flatten(0, 1)
    return torch.empty_like(heads).view(qu.shape), qu.new_empty(heads.shape[:2])


@torch.library.custom_op("greenformers::by_distance_backward", mutates_args=())
def _operator_backward(
    qu: Tensor, qv: Tensor, k: Tensor, v: Tensor, F: Tensor, bias: Tensor | None, seed: Tensor | None,
    window: Tensor | None, causal: bool, dropout: float, out: Tensor, lse: Tensor, dout: Tensor,
) -> list[Tensor]:  # fmt: skip
    with full_precision(qu):
        *grads, dF = _backward(qu, qv, k, v, F, bias, _how(seed, window, causal, dropout), out, lse, dout)
    return [*grads, dF.contiguous()]


@_operator_backward.register_fake
def _(qu: Tensor, qv: Tensor, k: Tensor, v: Tensor, F: Tensor, *_: Any) -> list[Tensor]:
    return [*(torch.empty_like(x.flatten(0, 1)).view(x.shape) for x in (qu, qv, k, v)), F.new_empty(F.shape)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.numbers = inputs[8:]
    ctx.save_for_backward(*inputs[:8], *output)


def _differentiate(ctx: Any, dout: Tensor, _: Tensor) -> tuple[Any, ...]:
    *tensors, out, lse = ctx.saved_tensors
    grads = torch.ops.greenformers.by_distance_backward(*tensors, *ctx.numbers, out, lse, dout)
    return *grads, *[None] * 5


_operator.register_autograd(_differentiate, setup_context=_save)


def by_distance(
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M D"],
    key_mask: Bool[Tensor, "B M"] | None,
    *,
    vectors: Float[Tensor, "h t D"] | None,
    bias: Float[Tensor, "H t"] | None,
    causal: bool,
    dropout: float = 0.0,
    window: int | Tensor | None = None,
) -> Float[Tensor, "B H N D"]:
    """softmax(D^-1/2 q_i (k_j + vectors_r) + bias_r) v, r = N - 1 - i + j for query i of the last N of M positions.

    The bias is one more column of the vectors. Outputs of queries without keys mean nothing, and are finite.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        key_mask: True = keep.
        vectors: Vectors of distances, in falling order, of each head or for all.
        bias: Biases of distances, in falling order; finite.
        causal: Whether a query sees no later key.
        dropout: Probability of dropping a weight.
        window: Distance of the farthest key that a query reads, see `tiled`; None: it reads all.
    """
    with full_precision(q):
        given, H = exact(q) * (q.shape[3] ** -0.5 / LN2), q.shape[1]
        columns = [] if vectors is None else [(given, vectors.to(given.dtype).expand(H, -1, -1))]
        columns += [] if bias is None else [(torch.full_like(given[..., :1], 1 / LN2), bias.to(given.dtype)[..., None])]
        short = -sum(F.shape[2] for _, F in columns) % 8  # other widths are slow
        qv, F = (torch.nn.functional.pad(torch.cat(parts, -1), (0, short)) for parts in zip(*columns, strict=True))
        of_keys = None
        if key_mask is not None:
            of_keys = torch.zeros_like(key_mask, dtype=given.dtype).masked_fill_(~key_mask, HIDDEN)
        out = tiled(given, qv, exact(k), exact(v), F, of_keys, causal=causal, dropout=dropout, window=window)
    return out.to(v.dtype)


def without_keys(key_mask: Bool[Tensor, "B M"], queries: int, *, causal: bool) -> Bool[Tensor, "B 1 n 1"]:
    """Whether a query, of the last positions, sees no key of a mask; n is 1 where all see the same."""
    seen = key_mask.cumsum(1)[:, key_mask.shape[1] - queries :] if causal else key_mask.sum(1, keepdim=True)
    return (seen == 0)[:, None, :, None]


def padded(F: Float[Tensor, "H t D"]) -> Float[Tensor, "H T D"]:
    """With rows behind the last for keys that are hidden as later than their query, and for whole multiples of 16."""
    return torch.nn.functional.pad(F, (0, 0, 0, sizes_of(F).queries + 16))


def plain(
    qu: Tensor, qv: Tensor, k: Tensor, v: Tensor, F: Tensor, bias: Tensor | None, how: How
) -> Float[Tensor, "B H N D"]:
    """The same in operations that torch differentiates, over all pairs."""
    N, M = qu.shape[2], k.shape[2]
    i, j = torch.arange(N, device=k.device)[:, None], torch.arange(M, device=k.device)
    at = (N - 1 - i + j).clamp(max=F.shape[1] - 1)
    far = (qv @ F.mT).gather(3, at.expand(*qv.shape[:3], M))
    scores = (qu @ k.mT + far) * LN2
    if bias is not None:
        scores = scores + bias[:, None, None] * LN2
    if how.causal:
        scores = scores.masked_fill(j > i + M - N, -1e30)
    return torch.nn.functional.dropout(scores.softmax(-1), how.dropout) @ v


def _again(ctx: Any, *given: Tensor) -> Tensor:
    if ctx.how.dropout:
        raise RuntimeError(f"relative attention has no second derivative with dropout: got {ctx.how.dropout}")
    qu, qv, k, v, F = given
    return plain(qu, qv, k, v, F, ctx.bias, ctx.how)
