"""Sigmoid attention that reads keys in order until its weights sum to a threshold, in tiles. For DACS.

A tile of queries reads keys in blocks: the products, the sigmoid in place, the sums of the rows; a cumulative sum only
of rows that reach the threshold within the block. Heads of which all queries have enough read no further block. Rows
are not coupled, so that the backward pass needs no more than where each row stopped: with s the scores and a their
sigmoid, da = dout v^T where read, ds = a (1 - a) da.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from greenformers._gradients import by_hand
from greenformers.attention._aligned import is_compiled, is_traced
from greenformers.attention._contract import full_precision, on_gpu
from greenformers.attention._dropout import drop_, new_seed

PART = 32
"""Keys of a part of a block, in which it is found where a query stops."""


class Sizes(NamedTuple):
    """Queries of a tile, keys of a block, and the number of weights that are computed at a time."""

    queries: int
    keys: int
    numbers: int


ON_CPU, ON_GPU = Sizes(256, 256, 2**19), Sizes(1024, 512, 2**26)
"""Weights that fit a cache; and few large products."""

ALL = slice(None)
"""All heads of a tile."""


def in_blocks(q: Float[Tensor, "B H N D"], keys: int) -> bool:
    """Whether so many keys are read block by block, until queries have enough: not where values cannot be read.

    Compiled, no more weights than are computed at a time are left to the compiler, which fuses what is done to them.
    """
    if not is_compiled():
        return not is_traced(q)
    B, H, N, _ = q.shape
    return B * H * N * keys > sizes_of(q).numbers


def read_until(
    q: Float[Tensor, "G N D"],
    k: Float[Tensor, "G M D"],
    v: Float[Tensor, "G M D"],
    limit: Int[Tensor, "G N"],
    keep: Bool[Tensor, "G M"] | None,
    *,
    threshold: float,
    together: int = 1,
    dropout: float = 0.0,
) -> tuple[Float[Tensor, "G N D"], Int[Tensor, "G N"]]:
    """sum_j sigmoid(q_i k_j) v_j over the first n_i keys, and n_i: the first with a sum of the weights of `threshold`.

    Compiled, it is one operator, which reads values as it runs.

    Args:
        q: Queries of G heads, already scaled.
        k: Keys.
        v: Values.
        limit: Most keys that each query reads.
        keep: True = keep; others have no weight.
        threshold: Sum of the weights at which a query stops; the key that reaches it is read.
        together: Number of neighbouring heads that stop as one, by the mean of their sums.
        dropout: Probability of dropping a weight.
    """
    if is_compiled():
        seed = torch.randint(2**31, ()) if dropout else None
        out, stop = torch.ops.greenformers.read_until(q, k, v, limit, keep, seed, threshold, together, dropout)
    else:
        out, stop = _Read.apply(q, k, v, limit, keep, (threshold, together, dropout, new_seed(dropout)))
    return out, stop


@torch.no_grad()
def stops(
    q: Float[Tensor, "G N D"],
    k: Float[Tensor, "G M D"],
    limit: Int[Tensor, "G N"],
    keep: Bool[Tensor, "G M"] | None,
    *,
    threshold: float,
    together: int = 1,
) -> Int[Tensor, "G N"]:
    """n_i alone, see `read_until`."""
    stop: Tensor
    if is_compiled():
        _, stop = torch.ops.greenformers.read_until(q, k, None, limit, keep, None, threshold, together, 0.0)
    else:
        _, stop = _read(q, k, None, limit, keep, threshold, together, 0.0, 0)
    return stop


def _read(
    q: Tensor, k: Tensor, v: Tensor | None, limit: Tensor, keep: Tensor | None, threshold: float, together: int,
    dropout: float, seed: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    out, stop, scratch = torch.zeros_like(q), limit.clone(), q.new_empty(_room(sizes_of(q), together))
    for heads, rows in _tiles(limit, together):
        tile = _Tile(q, k, keep, stop, heads, rows, scratch)
        total, mixed = (
            q.new_zeros(len(tile.queries) // together, tile.queries.shape[1]),
            q.new_zeros(tile.queries.shape),
        )
        for at, block, some in tile.blocks():
            texts = some if together == 1 or some is ALL else some[::together] // together
            a, active = tile.weights(at, block, some), tile.stop[some] > at
            before, sums = total[texts], a.sum(-1)
            if together > 1:
                sums = sums.unflatten(0, (-1, together)).mean(1)
            after = before + sums
            reaches = (after >= threshold) & active[::together]
            if bool(reaches.any()):
                tile.stop[some] = _ends(a, reaches, before, tile.stop[some], at, threshold, together)
                a.mul_(torch.arange(at, block.stop, device=a.device) < tile.stop[some][..., None])
            total[texts] = after
            if v is not None:
                seed = drop_(a, dropout, seed)
                values = v[heads][some, block]
                if bool(active.all()) and some is ALL:
                    mixed.baddbmm_(a, values)
                else:
                    mixed[some] += torch.bmm(a, values).mul_(active[..., None])
        out[heads, rows] = mixed
    return out, stop


def _ends(
    a: Float[Tensor, "g n w"], reaches: Bool[Tensor, "t n"], before: Float[Tensor, "t n"], stop: Int[Tensor, "g n"],
    at: int, threshold: float, together: int,
) -> Int[Tensor, "g n"]:  # fmt: skip
    """Where queries stop, of which some reach the threshold in a block: found in parts of it, then in one part."""
    text, row = reaches.nonzero(as_tuple=True)
    width = a.shape[2]
    parts = F.pad(a, (0, -width % PART)).unflatten(2, (-1, PART)) if width % PART else a.unflatten(2, (-1, PART))
    sums = parts.sum(-1).unflatten(0, (-1, together))[text, :, row].mean(1)  # (r, parts)
    earlier = before[text, row, None] + F.pad(sums.cumsum(1)[:, :-1], (1, 0))
    last = (earlier < threshold).sum(1) - 1
    of_part = parts.unflatten(0, (-1, together))[text, :, row, last].mean(1)  # (r, PART)
    base = earlier.gather(1, last[:, None])
    read = (base + F.pad(of_part.cumsum(1)[:, :-1], (1, 0)) < threshold).sum(1)
    stop = stop.clone().unflatten(0, (-1, together))
    stop[text, :, row] = torch.minimum(stop[text, :, row], (at + PART * last + read)[:, None])
    return stop.flatten(0, 1)


class _Tile:
    """Queries of some heads, and the blocks of keys that any of them reads.

    Args:
        q: Queries of all heads (G, N, D).
        k: Keys of all heads (G, M, D).
        keep: True = keep (G, M); None: all.
        stop: How many keys each query reads, as far as is known (G, N).
        heads: Slice of the heads.
        rows: Slice of the queries.
        scratch: Room for the weights.
    """

    def __init__(
        self, q: Tensor, k: Tensor, keep: Tensor | None, stop: Tensor, heads: slice, rows: slice, scratch: Tensor
    ) -> None:
        self.queries, self.keys, self.stop = q[heads, rows], k[heads], stop[heads, rows]
        self.keep, self.scratch = None if keep is None else keep[heads], scratch

    def blocks(self) -> Iterator[tuple[int, slice, Any]]:
        """The first key of each block, its keys, and the heads with a query that reads any: all, or which.

        Once a query has stopped, others are expected to stop soon, and blocks are shorter.
        """
        at, keys = 0, sizes_of(self.keys).keys
        while True:
            going = (self.stop > at).any(1)
            if not bool(going.any()):
                return
            width = keys // 4 if bool((self.stop <= at).any()) else keys
            block = slice(at, min(at + width, self.keys.shape[1]))
            yield at, block, ALL if bool(going.all()) else going.nonzero()[:, 0]
            at = block.stop

    def weights(self, at: int, block: slice, some: Any) -> Float[Tensor, "g n w"]:
        """The weights of a block, 0 for keys that are masked or beyond where a query stops."""
        queries, keys, stop = self.queries[some], self.keys[some, block], self.stop[some]
        shape = (*queries.shape[:2], keys.shape[1])
        a = torch.bmm(queries, keys.mT, out=self.scratch[: math.prod(shape)].view(shape)).sigmoid_()
        if self.keep is not None:
            a.mul_(self.keep[some, None, block])
        if int(stop.min()) < block.stop:
            a.mul_(torch.arange(at, block.stop, device=a.device) < stop[..., None])
        return a


def sizes_of(x: Tensor) -> Sizes:
    """Sizes of tiles for the device of a tensor."""
    return ON_GPU if on_gpu(x) else ON_CPU


def _room(sizes: Sizes, together: int) -> int:
    """Number of weights that are computed at a time."""
    of_head = sizes.queries * sizes.keys
    return max(1, sizes.numbers // of_head // together) * together * of_head


def _tiles(stop: Int[Tensor, "G N"], together: int) -> Iterator[tuple[slice, slice]]:
    """Slices of heads and of queries, whose weights of a block of keys fit the room, or are of one text."""
    sizes, (heads, queries) = sizes_of(stop), stop.shape
    step = _room(sizes, together) // (sizes.queries * sizes.keys)
    for first in range(0, heads, step):
        for row in range(0, queries, sizes.queries):
            yield slice(first, min(first + step, heads)), slice(row, min(row + sizes.queries, queries))


def _plain(
    q: Tensor, k: Tensor, v: Tensor, stop: Tensor, keep: Tensor | None, dropout: float = 0.0
) -> Float[Tensor, "G N D"]:
    """The output, in operations that torch differentiates, over all pairs."""
    read = torch.arange(k.shape[1], device=q.device) < stop[..., None]
    if keep is not None:
        read = read & keep[:, None]
    return F.dropout(torch.sigmoid(q @ k.mT) * read, dropout) @ v


def _again(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if ctx.dropout:
        raise RuntimeError(f"dacs has no second derivative with dropout: it must be 0, got {ctx.dropout}")
    return _plain(q, k, v, ctx.saved_tensors[3], ctx.keep)


def _backward(
    q: Tensor, k: Tensor, v: Tensor, stop: Tensor, keep: Tensor | None, together: int, dropout: float, seed: int,
    dout: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k and v, a tile and a block of keys at a time."""
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    scratch = q.new_empty(2, _room(sizes_of(q), together))
    for heads, rows in _tiles(stop, together):
        tile = _Tile(q, k, keep, stop, heads, rows, scratch[0])
        given = dout[heads, rows]
        for at, block, some in tile.blocks():
            a, grad = tile.weights(at, block, some), given[some]
            da = torch.bmm(grad, v[heads][some, block].mT, out=scratch[1, : a.numel()].view_as(a))
            seed_after = drop_(da, dropout, seed)
            da.mul_(a).addcmul_(da, a, value=-1)
            drop_(a, dropout, seed)
            seed = seed_after
            dv[heads, block][some] += torch.bmm(a.mT, grad)
            dq[heads, rows][some] += torch.bmm(da, tile.keys[some, block])
            dk[heads, block][some] += torch.bmm(da.mT, tile.queries[some])
    return dq, dk, dv


class _Read(torch.autograd.Function):
    """`read_until`, not compiled. Weights are computed again for the backward pass, as far as each query read."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, limit: Tensor, keep: Tensor | None,
        how: tuple[float, int, float, int],
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        threshold, together, ctx.dropout, ctx.seed = how
        ctx.together, ctx.keep = together, keep
        out, stop = _read(q, k, v, limit, keep, threshold, together, ctx.dropout, ctx.seed)
        ctx.save_for_backward(q, k, v, stop)
        ctx.mark_non_differentiable(stop)
        return out, stop

    @staticmethod
    @by_hand(3, _again)
    def backward(ctx: Any, dout: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, stop = ctx.saved_tensors
        return *_backward(q, k, v, stop, ctx.keep, ctx.together, ctx.dropout, ctx.seed, dout), None, None, None


# An operator takes tensors and numbers only. A seed is a tensor: a graph keeps the numbers that it was made with.


@torch.library.custom_op("greenformers::read_until", mutates_args=())
def _operator(
    q: Tensor, k: Tensor, v: Tensor | None, limit: Tensor, keep: Tensor | None, seed: Tensor | None, threshold: float,
    together: int, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    with full_precision(q):
        return _read(q, k, v, limit, keep, threshold, together, dropout, 0 if seed is None else int(seed))


@_operator.register_fake
def _(q: Tensor, k: Tensor, v: Tensor | None, limit: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    del k, v
    return torch.empty_like(q), torch.empty_like(limit)


@torch.library.custom_op("greenformers::read_until_backward", mutates_args=())
def _operator_backward(
    q: Tensor, k: Tensor, v: Tensor, stop: Tensor, keep: Tensor | None, seed: Tensor | None, together: int,
    dropout: float, dout: Tensor,
) -> list[Tensor]:  # fmt: skip
    with full_precision(q):
        return [*_backward(q, k, v, stop, keep, together, dropout, 0 if seed is None else int(seed), dout)]


@_operator_backward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> list[Tensor]:
    return [torch.empty_like(x) for x in (q, k, v)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, _, keep, seed, _, ctx.together, ctx.dropout = inputs
    ctx.save_for_backward(q, k, v, output[1], keep, seed)


def _differentiate(ctx: Any, dout: Tensor, _: Tensor) -> tuple[Any, ...]:
    grads = torch.ops.greenformers.read_until_backward(*ctx.saved_tensors, ctx.together, ctx.dropout, dout)
    return *grads, *[None] * 6


_operator.register_autograd(_differentiate, setup_context=_save)
