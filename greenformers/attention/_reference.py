"""What the formulas of this folder are written with: dense, plain and slow. No fast form uses anything of it.

Every mechanism's file begins with `reference(mechanism, q, k, v, key_mask=None)`, the formula of its paper, which the
tests hold the fast form below it to, outputs and gradients.
"""

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from greenformers.attention._contract import Attention

Formula = Callable[[Any, int, int, int, int], bool]
"""(mechanism, i, j, head, length) -> whether position i sees position j of so many, the future apart."""


def dot_products(q: Float[Tensor, "... N D"], k: Float[Tensor, "... M D"]) -> Float[Tensor, "... N M"]:
    """Scores q k^T / sqrt(D)."""
    return q @ k.mT / math.sqrt(q.shape[-1])


def seen_keys(
    mechanism: Attention, q: Float[Tensor, "B H N D"], k: Float[Tensor, "B H M D"], key_mask: Tensor | None
) -> Bool[Tensor, "b 1 N M"]:
    """Whether query i may see key j: it is kept, and where causal no later than i, queries being the last N of M."""
    queries, keys = q.shape[2], k.shape[2]
    seen = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=q.device)
    if mechanism.shape.causal:
        seen = seen.tril(keys - queries)
    return seen if key_mask is None else seen & key_mask[:, None, None]


def weighted_mean(
    weights: Float[Tensor, "... N M"], v: Float[Tensor, "... M D"], seen: Bool[Tensor, "... N M"]
) -> Float[Tensor, "... N D"]:
    """sum_j w_ij v_j / sum_j w_ij over the keys j that query i sees; 0 where it sees none."""
    weights = torch.where(seen, weights, 0.0)
    total = weights.sum(-1, keepdim=True)
    return weights @ v / torch.where(total > 0, total, 1.0)


def pairs(formula: Formula, mechanism: Attention, queries: int, keys: int) -> Bool[Tensor, "H N M"]:
    """For which pairs the formula of a pattern holds, the queries being the last N of M positions."""
    length = range(keys)
    rows = length[keys - queries :]
    heads = range(mechanism.shape.heads)
    return torch.tensor([[[formula(mechanism, i, j, head, keys) for j in length] for i in rows] for head in heads])


class PatternReference(Protocol):
    """What `over_pairs` gives."""

    def __call__(
        self, mechanism: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None, visible: Any = None
    ) -> Tensor:
        """The outputs (B, H, N, D); `visible` (..., H, N, M) in place of the formula's pairs, where it is given."""


def over_pairs(formula: Formula) -> PatternReference:
    """The reference of a pattern: softmax(q k^T / sqrt(D)) v over the pairs for which its formula holds."""

    def reference(
        mechanism: Any,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        visible: Bool[Tensor, "... H N M"] | None = None,
    ) -> Float[Tensor, "B H N D"]:
        if visible is None:
            visible = pairs(formula, mechanism, q.shape[2], k.shape[2]).to(q.device)
        return weighted_mean(dot_products(q, k).exp(), v, visible & seen_keys(mechanism, q, k, key_mask))

    return reference
