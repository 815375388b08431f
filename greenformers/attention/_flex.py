"""FlexAttention of torch, on a GPU: one kernel, which skips blocks no query sees and adds biases of pairs."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.utils.checkpoint import checkpoint

Sees = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Whether query i of a head sees key j, as a function (example, head, i, j) that can be traced."""


def flex(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, mask: BlockMask) -> Tensor:
    """softmax(D^-1/2 q k^T) v over the keys of the block mask that the key mask (B, M) keeps; 0 without any.

    Compiled on a GPU; elsewhere plain torch, for tests.
    """

    def masked(score: Tensor, example: Tensor, _head: Tensor, _i: Tensor, j: Tensor) -> Tensor:
        assert key_mask is not None
        return torch.where(key_mask[example, j], score, -torch.inf)

    out: Tensor = kernel(q)(q, k, v, score_mod=None if key_mask is None else masked, block_mask=mask)
    return out


LEAST_WIDTH = 16
"""Least width of a head that the kernel takes on a GPU."""

LENGTHS = 64
"""Numbers of positions of which a pattern keeps the masks of blocks: each layer has its own, of N^2 / 128^2 numbers."""

TABLE, ROWS = 2**28, 128
"""Biases by distance that exist at a time, of a multiple of so many queries."""


def flex_by_distance(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, biases: Callable[[slice, slice], Tensor], *,
    causal: bool, window: int | None = None,
) -> Tensor:  # fmt: skip
    """softmax(q k^T + bias) v over the keys that the key mask (B, M) keeps, 0 without any; some queries at a time.

    Args:
        q: Queries (B, H, N, D), the last of the positions where causal; already scaled.
        k: Keys (B, H, M, D).
        v: Values (B, H, M, D).
        key_mask: True = keep (B, M).
        biases: Function from some queries and distances to their biases (b, h, n, t). Query i and key j have the
            distance at N - 1 - i + j. They are computed again for the backward pass.
        causal: Whether a query sees no later key.
        window: Distance of the farthest key that a query reads; None: it reads all.
    """
    (B, H, N, _), M = q.shape, k.shape[2]
    step, outs = max(ROWS, TABLE // (B * H * (N + M)) // ROWS * ROWS), []
    for first in range(0, N, step):
        rows = slice(first, min(first + step, N))
        start, end = 0, M - N + rows.stop if causal else M
        if window is not None:
            start, end = max(0, M - N + first - window), min(end, M - N + rows.stop + window)
        # The distance of the last of these queries to the first key is the first that they need.
        some = slice(N - rows.stop + start, N - first + end - 1)
        # Other strides would be compiled anew.
        parts: list[Any] = [x.contiguous() for x in (q[:, :, rows], k[:, :, start:end], v[:, :, start:end])]

        def run(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rows: slice = rows, some: slice = some) -> Tensor:
            return _biased(q, k, v, biases(rows, some).expand(*q.shape[:3], -1), mask, causal=causal)

        parts.append(None if key_mask is None else key_mask[:, start:end])
        outs.append(checkpoint(run, *parts, use_reentrant=False) if torch.is_grad_enabled() else run(*parts))
    return torch.cat(outs, 2)


def _biased(q: Tensor, k: Tensor, v: Tensor, table: Tensor, key_mask: Tensor | None, *, causal: bool) -> Tensor:
    """`flex_by_distance` with biases (B, H, N, t) of all distances; of later keys, where causal, there may be none."""
    last, past, furthest = q.shape[2] - 1, k.shape[2] - q.shape[2], table.shape[3] - 1

    def biased(score: Tensor, example: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        score = score + table[example, head, i, (last - i + j).clamp(max=furthest)]
        if causal:
            score = torch.where(j <= i + past, score, -torch.inf)
        return score if key_mask is None else torch.where(key_mask[example, j], score, -torch.inf)

    out: Tensor = kernel(q)(q, k, v, score_mod=biased, scale=1.0)
    return out


FORMS = 64
"""Forms that are compiled at most: one for the first length and one for all others, of each mask, dtype and mechanism.
torch's own limit is 8, beyond which it would compute all pairs."""


def kernel(q: Tensor) -> Any:
    """FlexAttention; on a GPU compiled, unless all that is around it is."""
    return _compiled() if q.is_cuda and not torch.compiler.is_compiling() else flex_attention


@cache
def _compiled() -> Any:
    compiled: Any = torch.compile(flex_attention)
    config: Any = torch.compiler.config

    def call(*args: Any, **options: Any) -> Any:
        with config.patch(recompile_limit=FORMS, fail_on_recompile_limit_hit=True):
            return compiled(*args, **options)

    return call
