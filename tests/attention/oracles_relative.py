"""Relative attention, one pair at a time."""

import math
from typing import Any

import torch
from torch import Tensor


def relative(module: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """Dai 2019, section 3.3: the four terms of A_rel, each by itself. Causal: query i stands at key i + M - N."""
    (B, H, N, D), M = q.shape, k.shape[2]
    out = []
    for b, h, i in torch.cartesian_prod(*map(torch.arange, (B, H, N))).tolist():
        place = i + M - N
        weights, values = [], []
        for j in range(place + 1 if module.shape.causal else M):
            if key_mask is not None and not key_mask[b, j]:
                continue
            R = module.W_R[h] @ _waves(place - j, H * D).to(q)
            a, bee, c, d = q[b, h, i] @ k[b, h, j], q[b, h, i] @ R, module.u[h] @ k[b, h, j], module.v[h] @ R
            weights.append(torch.exp((a + bee + c + d) / math.sqrt(D)))
            values.append(v[b, h, j])
        whole = [weight * value for weight, value in zip(weights, values, strict=True)]
        out.append(sum(whole) / sum(weights) if whole else torch.zeros_like(q[b, h, i]))
    return torch.stack(out).view(q.shape)


def _waves(distance: int, width: int) -> Tensor:
    rates = [10000.0 ** (-2 * n / width) for n in range((width + 1) // 2)]
    both = [math.sin(distance * rate) for rate in rates] + [math.cos(distance * rate) for rate in rates]
    return torch.tensor(both[:width], dtype=torch.float64)
