"""Slow readings of the formulas of the mechanisms that learn, or draw, who sees whom."""

import math
from typing import Any

import torch
from torch import Tensor


def reformer(module: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """Kitaev 2020, eq. 5 and 6 and appendix A, one query at a time, of the positions that are kept."""
    batch, heads, length = k.shape[:3]  # which is all that is read of k
    out = []
    for b in range(batch):
        kept = [i for i in range(length) if key_mask is None or key_mask[b, i]]
        for h in range(heads):
            seen = [
                _seen(module, [_bucket(module, r, h, q[b, h, i]) for i in kept], kept) for r in range(module.rounds)
            ]
            out.extend(
                _mixed(module.scale, q[b, h], v[b, h], i, [each.get(i, []) for each in seen]) for i in range(length)
            )
    return torch.stack(out).view(q.shape)


def _bucket(module: Any, round_: int, head: int, x: Tensor) -> int:
    """argmax([x R; -x R])."""
    if module.n_buckets == 1:
        return 0
    x = x.detach() @ module.rotations[round_, head]
    return max(range(module.n_buckets), key=torch.cat([x, -x]).tolist().__getitem__)


def _seen(module: Any, buckets: list[int], kept: list[int]) -> dict[int, list[int]]:
    """Whom each kept position sees: its chunk of the sorted ones and that before it, the last one for the first."""
    length = max(kept, default=0) + 1
    places = [i for _, i in sorted((length * bucket + i, i) for bucket, i in zip(buckets, kept, strict=True))]
    chunks = [places[at : at + module.chunk] for at in range(0, len(places), module.chunk)]
    return {i: sorted({*chunk, *chunks[at - 1]}) for at, chunk in enumerate(chunks) for i in chunk}


def _mixed(scale: float, q: Tensor, v: Tensor, i: int, seen: list[list[int]]) -> Tensor:
    """What position i gets: the softmax of each round, in the shares of their sums of weights."""
    if not any(seen):
        return torch.zeros_like(v[i])
    outs, sums = [], []
    for of_round in seen:
        scores = []
        for j in of_round:
            score = scale * (q[i] * q[j] / q[j].norm()).sum() if j != i else torch.tensor(-1e5, dtype=q.dtype)
            scores.append(score - math.log(sum(j in others for others in seen)))
        stacked = torch.stack(scores)
        outs.append(stacked.softmax(0) @ v[of_round])
        sums.append(stacked.logsumexp(0))
    return torch.stack(sums).softmax(0) @ torch.stack(outs)
