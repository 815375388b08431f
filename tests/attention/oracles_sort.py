"""Sinkhorn and Routing, one query at a time."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def sinkhorn(module: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """Tay 2020, section 3: block by block, position by position, with probabilities and not logarithms."""
    size, M, past = module.block, k.shape[2], k.shape[2] - q.shape[2]
    blocks = [range(start, min(start + size, M)) for start in range(0, M, size)]
    out = []
    for b, h in torch.cartesian_prod(*map(torch.arange, q.shape[:2])).tolist():
        kept = [key_mask is None or bool(key_mask[b, j]) for j in range(M)]
        if module.shape.causal:
            P = _past(module, k[b, h], blocks, kept)
        else:
            P = _doubly(module, q[b, h], k[b, h], blocks, kept)
        for i in range(q.shape[2]):
            place = i + past
            own = place // size
            rows = range(len(blocks))[: module.cut] if module.cut is not None else [own]
            weights, values = [], []
            if module.cut is None:
                for j in blocks[own]:
                    if kept[j] and not (module.shape.causal and j > place):
                        weights.append(_weight(q[b, h, i], k[b, h, j]))
                        values.append(v[b, h, j])
            for row in rows:
                for at in range(size):
                    there = [(P[row][n], block[at]) for n, block in enumerate(blocks) if at < len(block)]
                    there = [(share, j) for share, j in there if kept[j]]
                    share, total = sum(one for one, _ in there), sum(P[row])
                    if not share > 0:
                        continue
                    shares, places = torch.stack([one for one, _ in there]), [j for _, j in there]
                    key, value = (shares @ x[b, h, places] * total / share for x in (k, v))
                    alone = key_mask is None and M % size == 0
                    weights.append(_weight(q[b, h, i], key) * (1.0 if alone else share / total))
                    values.append(value)
            whole = [weight * value for weight, value in zip(weights, values, strict=True)]
            out.append(sum(whole) / sum(weights) if whole else torch.zeros_like(q[b, h, i]))
    return torch.stack(out).view(q.shape)


def _weight(query: Tensor, key: Tensor) -> Tensor:
    return torch.exp((query * key).sum() / math.sqrt(len(query)))


def _sum(x: Tensor, places: list[int]) -> Tensor:
    return sum((x[place] for place in places), torch.zeros_like(x[0]))


def _doubly(module: Any, q: Tensor, k: Tensor, blocks: list[range], kept: list[bool]) -> list[list[Any]]:
    groups = [[j for j in block if kept[j]] for block in blocks]
    there = [n for n, group in enumerate(groups) if group]
    P: list[list[Any]] = [[0.0] * len(blocks) for _ in blocks]
    for i in there:
        for j in there:
            R = (_sum(q, groups[i]) * _sum(k, groups[j])).sum() / math.sqrt(
                len(groups[i]) * len(groups[j]) * q.shape[1]
            )
            P[i][j] = torch.exp(R / module.temperature)
    for _ in range(module.iterations):
        for i in there:
            total = sum(P[i])
            P[i] = [one / total for one in P[i]]
        totals = [sum(P[i][j] for i in there) for j in range(len(blocks))]
        for i in there:
            P[i] = [P[i][j] / totals[j] if j in there else 0.0 for j in range(len(blocks))]
    return P


def _past(module: Any, k: Tensor, blocks: list[range], kept: list[bool]) -> list[list[Any]]:
    groups = [[j for j in block if kept[j]] for block in blocks]
    P: list[list[Any]] = []
    for i in range(len(blocks)):
        before = [j for group in groups[:i] for j in group]
        row: list[Any] = [0.0] * len(blocks)
        for j in range(i):
            if groups[j]:
                R = (_sum(k, before) * _sum(k, groups[j])).sum()
                row[j] = torch.exp(R / math.sqrt(len(before) * len(groups[j]) * k.shape[1]) / module.temperature)
        total = sum(row)
        P.append([one / total for one in row] if any(groups[:i]) else row)
    return P


def routing(module: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """Roy 2020, algorithm 1: cluster by cluster."""
    B, H, N, D = q.shape
    q, k = (F.layer_norm(x, (D,)) for x in (q, k))
    width = -(-N // module.clusters) if module.window is None else module.window
    rows = []
    for b in range(B):
        kept = [i for i in range(N) if key_mask is None or key_mask[b, i]]
        for h in range(H):
            found: list[list[Tensor]] = [[] for _ in range(N)]
            for centroid in module.centroids[h]:
                scores = [(x[b, h] @ centroid).tolist() for x in (q, k)]
                near = [sorted(kept, key=lambda i, found=found: -found[i])[: min(width, N)] for found in scores]
                for i in near[0]:
                    weights = torch.exp(k[b, h, near[1]] @ q[b, h, i] / math.sqrt(D))
                    found[i].append(weights @ v[b, h, near[1]] / weights.sum())
            rows += [sum(some) / len(some) if some else torch.zeros_like(q[b, h, 0]) for some in found]
    return torch.stack(rows).view(q.shape)
