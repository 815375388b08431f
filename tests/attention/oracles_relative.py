"""Relative attention, one pair at a time."""

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor


def relative(module: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """Dai 2019, section 3.3: the four terms of A_rel, each by itself. Causal: query i stands at key i + M - N."""
    (B, H, N, D), M = q.shape, k.shape[2]
    out = []
    for b, h, i in torch.cartesian_prod(*map(torch.arange, (B, H, N))).tolist():
        place = i + M - N
        last = place + 1 if module.shape.causal else M
        seen = [j for j in range(last) if key_mask is None or key_mask[b, j]]
        if not seen:
            out.append(torch.zeros_like(q[b, h, i]))
            continue
        keys, R = k[b, h, seen], torch.stack([_waves(place - j, H * D) for j in seen]).to(q) @ module.W_R[h].T
        weights = torch.exp((keys @ q[b, h, i] + R @ q[b, h, i] + keys @ module.u[h] + R @ module.v[h]) / math.sqrt(D))
        out.append(weights @ v[b, h, seen] / weights.sum())
    return torch.stack(out).view(q.shape)


@cache
def _waves(distance: int, width: int) -> Tensor:
    rates = [10000.0 ** (-2 * n / width) for n in range((width + 1) // 2)]
    both = [math.sin(distance * rate) for rate in rates] + [math.cos(distance * rate) for rate in rates]
    return torch.tensor(both[:width], dtype=torch.float64)
