"""FlexAttention of torch, for patterns on an accelerator: one kernel that skips blocks no query sees."""

from collections.abc import Callable
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

    attention: Any = torch.compile(flex_attention, dynamic=False) if q.is_cuda else flex_attention
    out: Tensor = attention(q, k, v, score_mod=None if key_mask is None else masked, block_mask=mask)
    return out
