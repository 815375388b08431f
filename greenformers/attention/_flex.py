"""FlexAttention of torch, on a GPU: one kernel, which skips blocks no query sees and adds biases of pairs."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

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


def flex_by_distance(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, key_mask: Tensor | None, *, causal: bool
) -> Tensor:
    """softmax(q k^T + table) v over the keys that the key mask (B, M) keeps, 0 without any.

    Query i and key j read `table` (B, H, N, t) at row i, column N - 1 - i + j. Where causal, queries are the last of
    the positions, and see no later one, of which the table may end short.
    """
    last, past, furthest = q.shape[2] - 1, k.shape[2] - q.shape[2], table.shape[3] - 1

    def biased(score: Tensor, example: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        score = score + table[example, head, i, (last - i + j).clamp(max=furthest)]  # of later keys there is none
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
