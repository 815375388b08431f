"""Slow readings of the formulas of the Synthesizers. Tay 2020, arXiv:2005.00743."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Scores = Callable[[int, Tensor, int, list[int]], Tensor]
"""(head, x_i, position of i, positions of the keys j) -> a score of i for each j."""


def dense(module: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """Eq. 2-3; W1 x + b1 is q."""

    def score(h: int, x: Tensor, _: int, at: list[int]) -> Tensor:
        return module.W2[h, at] @ x.clamp(min=0) + module.b2[h, at]

    return _mixture(score, module, q, k, v, key_mask)


def factorized_dense(module: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """Eq. 5-6: A_i[j mod a] B_i[floor(j / a)]."""
    a = math.ceil(math.sqrt(module.shape.max_len))

    def score(h: int, x: Tensor, _: int, at: list[int]) -> Tensor:
        x, rows, columns = x.clamp(min=0), [j // a for j in at], [j % a for j in at]
        A = x @ module.W_A[h][:, columns] + module.b_A[h, 0, columns]
        B = x @ module.W_B[h][:, rows] + module.b_B[h, 0, rows]
        return A * B

    return _mixture(score, module, q, k, v, key_mask)


def random(module: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """Eq. 4."""
    return _mixture(lambda h, _, i, at: module.R[h, i, at], module, q, k, v, key_mask)


def factorized_random(module: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """Eq. 7."""

    def score(h: int, _: Tensor, i: int, at: list[int]) -> Tensor:
        return module.R2[h, at] @ module.R1[h, i]

    return _mixture(score, module, q, k, v, key_mask)


def _mixture(score: Scores, module: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """softmax over the keys that query i may see, of synthetic scores or of them and q k / sqrt(D) by shares."""
    batch, heads, queries, keys = *q.shape[:3], k.shape[2]
    causal, past = module.shape.causal, keys - queries
    out = []
    for b in range(batch):
        kept = [True] * keys if key_mask is None else key_mask[b].tolist()
        # Where a decoder counts only what it keeps, a position is the number of kept ones before it.
        at = [max(sum(kept[: j + 1]) - 1, 0) for j in range(keys)] if causal else list(range(max(keys, queries)))
        for h in range(heads):
            for i in range(queries):
                seen = [j for j in range(keys) if kept[j] and not (causal and j > past + i)]
                if not seen:
                    out.append(torch.zeros_like(v[b, h, 0]))
                    continue
                scores = score(h, q[b, h, i], at[past + i] if causal else i, [at[j] for j in seen])
                if module.mixed:
                    dots = k[b, h, seen] @ q[b, h, i] / math.sqrt(q.shape[3])
                    shares = module.mix.exp() / module.mix.exp().sum()
                    scores = shares[0] * dots + shares[1] * scores
                weights = torch.exp(scores)
                out.append(weights @ v[b, h, seen] / weights.sum())
    return torch.stack(out).view(q.shape)
