"""Attention in tiles as one differentiable call, and as an operator that torch.compile leaves as it is."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from greenformers._gradients import only_once
from greenformers._torch import is_fake
from greenformers.attention import _tiled
from greenformers.attention._contract import accurate
from greenformers.attention._dropout import new_seed
from greenformers.attention._tiled import Inputs, Plan, parts
from greenformers.attention._tiles import Group, Tiling


class Columns(NamedTuple):
    """Keys that every query meets beside those of its tile.

    Attributes:
        k: Keys (B, H, C, D).
        v: Values (B, H, C, D).
        bias: Bias of the scores (B or 1, H or 1, C): 0, or -inf for hidden columns.
        positions: Positions of the columns (H, C): a query sees those up to its own. None: it sees all.
        per_tile: Number of columns in each tile, if there are positions.
    """

    k: Tensor | None = None
    v: Tensor | None = None
    bias: Tensor | None = None
    positions: Tensor | None = None
    per_tile: int = 0


def tiled_attention(
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M D"],
    groups: Sequence[Group],
    *,
    key_bias: Float[Tensor, "b h M"] | None = None,
    columns: Columns | None = None,
    extra_blocks: Int[Tensor, "H T r"] | None = None,
    labels: Float[Tensor, "H n D"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "B H N D"]:
    """softmax(D^-1/2 q k^T) v of each query over the keys of its tile, 0 for a query that sees none.

    Args:
        q: Queries (B, H, N, D).
        k: Keys (B, H, M, D).
        v: Values (B, H, M, D).
        groups: The tiles, from `greenformers.attention._tiles.groups`.
        key_bias: Bias of the keys in tiles (B or 1, H or 1, M): 0 for kept keys, else -inf.
        columns: Keys that all queries meet.
        extra_blocks: Indices of the blocks that each tile meets besides its own (H, T, r); blocks are as long as tiles.
        labels: Vectors a of relative positions -c to c (H, 2c + 1, D): key j counts as k_j + a of j - i, clipped, for
            query i. Shaw 2018, arXiv:1803.02155, eq. 5.
        dropout: Probability of dropping an attention weight.
    """
    c = columns or Columns()
    x = Inputs(q, k, v, c.k, c.v, c.bias, c.positions, labels, key_bias, extra_blocks)
    out: Tensor
    if torch.compiler.is_compiling() or is_fake(q) or q.is_meta:
        # Traced, a long sequence would be thousands of operators.
        seed = torch.randint(2**31, ()) if dropout else None
        out, _ = torch.ops.greenformers.tiled(*x, *_flat(groups), c.per_tile, dropout, seed)
    else:
        out = _Tiled.apply(*x, Plan(tuple(groups), c.per_tile, dropout, new_seed(dropout)))
    return out


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        *tensors, ctx.plan = given
        out, lse = _tiled.forward(Inputs(*tensors), ctx.plan)
        ctx.save_for_backward(*tensors, out, lse)
        return out

    @staticmethod
    @only_once("attention in tiles")
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, out, lse = ctx.saved_tensors
        x = Inputs(*tensors)
        return *_in_order(x, _tiled.backward(x, ctx.plan, out, lse, dout)), None


def _in_order(x: Inputs, grads: Sequence[Tensor]) -> list[Tensor | None]:
    """Gradients of all inputs, None where there is none."""
    left = iter(grads)
    differentiable = ("q", "k", "v", "column_k", "column_v", "labels")
    return [next(left) if name in differentiable and y is not None else None for name, y in x._asdict().items()]


# An operator takes tensors and numbers only. A seed is a tensor: a graph keeps the numbers that it was made with.


def _flat(groups: Sequence[Group]) -> tuple[list[Tensor], list[int]]:
    biases, numbers = [], []
    for g in groups:
        first, end = g.tiling.heads
        numbers += [g.tiling.rows, g.tiling.stride, first, -1 if end is None else end, *g[1:8], g.merge, len(g.bias)]
        numbers += [start for start, _ in g.bias]
        biases += [bias for _, bias in g.bias]
    return biases, numbers


def _groups(biases: Sequence[Tensor], numbers: Sequence[int]) -> tuple[Group, ...]:
    groups, left, tensors = [], iter(numbers), iter(biases)
    for rows in left:
        stride, first, end = (next(left) for _ in range(3))
        at, tiles, classes, tall, keys, q_start, k_start = (next(left) for _ in range(7))
        merge, count = bool(next(left)), next(left)
        starts = [next(left) for _ in range(count)]
        tiling = Tiling(rows, None, None, stride, heads=(first, None if end < 0 else end))
        bias = tuple((start, next(tensors)) for start in starts)
        groups.append(Group(tiling, at, tiles, classes, tall, keys, q_start, k_start, bias, merge))
    return tuple(groups)


def _plan(biases: list[Tensor], numbers: list[int], per_tile: int, dropout: float, seed: Tensor | None) -> Plan:
    return Plan(_groups(biases, numbers), per_tile, dropout, 0 if seed is None else int(seed))


@torch.library.custom_op("greenformers::tiled", mutates_args=())
def _operator(
    q: Tensor, k: Tensor, v: Tensor, column_k: Tensor | None, column_v: Tensor | None, column_bias: Tensor | None,
    column_positions: Tensor | None, labels: Tensor | None, key_bias: Tensor | None, extra_blocks: Tensor | None,
    biases: list[Tensor], numbers: list[int], per_tile: int, dropout: float, seed: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    x = Inputs(q, k, v, column_k, column_v, column_bias, column_positions, labels, key_bias, extra_blocks)
    return _tiled.forward(x, _plan(biases, numbers, per_tile, dropout, seed))


@_operator.register_fake
def _(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(q[..., 0], dtype=accurate(q))


@torch.library.custom_op("greenformers::tiled_backward", mutates_args=())
def _operator_backward(
    q: Tensor, k: Tensor, v: Tensor, column_k: Tensor | None, column_v: Tensor | None, column_bias: Tensor | None,
    column_positions: Tensor | None, labels: Tensor | None, key_bias: Tensor | None, extra_blocks: Tensor | None,
    biases: list[Tensor], numbers: list[int], per_tile: int, dropout: float, seed: Tensor | None,
    out: Tensor, lse: Tensor, dout: Tensor,
) -> list[Tensor]:  # fmt: skip
    x = Inputs(q, k, v, column_k, column_v, column_bias, column_positions, labels, key_bias, extra_blocks)
    return _tiled.backward(x, _plan(biases, numbers, per_tile, dropout, seed), out, lse, dout)


@_operator_backward.register_fake
def _(*given: Any) -> list[Tensor]:
    return [torch.empty_like(y) for y in (*given[:5], given[7]) if y is not None]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors, (biases, *ctx.rest, seed) = inputs[:10], inputs[10:]
    ctx.count = len(biases)
    ctx.save_for_backward(*tensors, *biases, seed, *output)


def _differentiate(ctx: Any, dout: Tensor, _: Tensor) -> tuple[Any, ...]:
    saved = ctx.saved_tensors
    tensors, biases, (seed, *output) = saved[:10], list(saved[10:-3]), saved[-3:]
    grads = torch.ops.greenformers.tiled_backward(*tensors, biases, *ctx.rest, seed, *output, dout)
    return *_in_order(Inputs(*tensors), grads), [None] * ctx.count, *[None] * (len(ctx.rest) + 1)


_operator.register_autograd(_differentiate, setup_context=_save)


class Amount(NamedTuple):
    """Cost of the operator or its backward: scores, other numbers in its products, FLOPs of these, and slices."""

    scores: int
    operands: int
    flops: int
    slices: int


def amount(arguments: Sequence[Any]) -> Amount:
    """Cost of the operator or its backward, by its arguments; shapes may stand for tensors."""
    q, columns, labels, extra_blocks = (getattr(arguments[at], "shape", arguments[at]) for at in (0, 3, 7, 9))
    biases, numbers, per_tile = arguments[10:13]
    products = 2 if len(arguments) == 15 else 5
    plan = Plan(_groups(biases, numbers), per_tile, 0.0, 0)
    scores = operands = flops = slices = 0
    for part in parts(plan, q, columns[2] if columns else 0, extra_blocks[2] if extra_blocks else 0):
        rows = part.n * part.group.rows
        scores += rows * part.width
        operands += products * (rows + part.n * part.width) * q[3]
        slices += 1
        flops += 2 * products * rows * part.width * q[3]
        if labels:
            by_width, by_keys = (1, 1) if products == 2 else (3, 2)
            flops += 2 * rows * labels[1] * (by_width * q[3] + by_keys * part.group.keys)
    return Amount(scores, operands, flops, slices)
