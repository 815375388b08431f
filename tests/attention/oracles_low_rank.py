"""Slow readings of the formulas of the low-rank mechanisms."""

import math
from typing import Any

import torch
from torch import Tensor


def nystromformer(module: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """Xiong 2021, eq. 13-15, one matrix at a time, of the positions and landmarks that are kept."""
    batch, heads, queries, keys = *q.shape[:3], k.shape[2]
    out = []
    for b in range(batch):
        kept = [True] * keys if key_mask is None else key_mask[b].tolist()
        # Padding is the queries' own only where they are the keys' sequence.
        kept_queries = kept if queries == keys else [True] * queries
        for h in range(heads):
            mixed = _by_landmarks(module, q[b, h], k[b, h], v[b, h], kept_queries, kept)
            out.append(mixed if module.convolution is None else mixed + _convolved(module.kernel[h], v[b, h], kept))
    return torch.stack(out).view(q.shape)


def _by_landmarks(
    module: Any, q: Tensor, k: Tensor, v: Tensor, kept_queries: list[bool], kept_keys: list[bool]
) -> Tensor:
    """softmax(q k~) softmax(q~ k~)^+ softmax(q~ k) v of a head: q (N, D), k and v (M, D)."""
    short_q, short_k = (_means(x, kept, module.landmarks) for x, kept in ((q, kept_queries), (k, kept_keys)))
    if not short_q or not short_k:
        return torch.zeros_like(q)
    short_q, short_k = torch.stack(short_q), torch.stack(short_k)
    inverse = _pseudoinverse(_softmax(short_q, short_k), module.iterations)
    return _softmax(q, short_k) @ inverse @ _softmax(short_q, k[kept_keys]) @ v[kept_keys]


def _means(x: Tensor, kept: list[bool], landmarks: int) -> list[Tensor]:
    """The mean of each of the segments that keeps anything; the last ones are longer by one."""
    segments = min(landmarks, len(x))
    ends, end = [], 0
    for segment in range(segments):
        end += len(x) // segments + (segment >= segments - len(x) % segments)
        ends.append(end)
    parts = [[i for i in range(a, b) if kept[i]] for a, b in zip([0, *ends], ends, strict=False)]
    return [sum(x[i] for i in part) / len(part) for part in parts if part]


def _softmax(q: Tensor, k: Tensor) -> Tensor:
    weights = torch.stack([torch.exp((query * k).sum(1) / math.sqrt(len(query))) for query in q])
    return weights / weights.sum(1, keepdim=True)


def _pseudoinverse(A: Tensor, iterations: int) -> Tensor:
    """Eq. 14, from A^T over the product of its norms."""
    Z = A.T / (max(row.sum() for row in A) * max(column.sum() for column in A.T))
    one = torch.eye(len(A), dtype=A.dtype)
    for _ in range(iterations):
        Z = Z @ (13 * one - A @ Z @ (15 * one - A @ Z @ (7 * one - A @ Z))) / 4
    return Z


def _convolved(kernel: Tensor, v: Tensor, kept: list[bool]) -> Tensor:
    """sum_d kernel[d] v[i + d - width // 2] over the kept positions."""
    out = []
    for i in range(len(v)):
        at = [(d, i + d - len(kernel) // 2) for d in range(len(kernel))]
        out.append(sum((kernel[d] * v[j] for d, j in at if 0 <= j < len(v) and kept[j]), torch.zeros_like(v[i])))
    return torch.stack(out)
