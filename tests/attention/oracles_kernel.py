"""Slow readings of the formulas of the mechanisms that are a feature map."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def linear_transformer(module: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """Katharopoulos 2020, eq. 4 and 7, or with exp(x) in place of elu(x) + 1."""

    def phi(x: Tensor) -> Tensor:
        return torch.exp(x) if module.feature_map == "exp" else torch.where(x > 0, x + 1, torch.exp(x))

    return mixture(phi, module.shape.causal, q, k, v, key_mask)


def performer(module: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """Choromanski 2020, eq. 5, with the module's own rows."""
    return mixture(lambda x: random_features(module, x), module.shape.causal, q, k, v, key_mask)


def random_features(module: Any, x: Tensor) -> Tensor:
    """The features of a vector of D; their products estimate exp(q k / sqrt(D)) but for "relu"."""
    x = x / len(x) ** 0.25
    if module.kernel == "relu":
        return (module.rows @ x).clamp(min=0) + 1e-3
    rows = torch.cat([module.rows, -module.rows]) if module.kernel == "hyperbolic" else module.rows
    return torch.exp(rows @ x - (x * x).sum() / 2) / math.sqrt(len(rows))


def mixture(
    phi: Callable[[Tensor], Tensor], causal: bool, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None
) -> Tensor:
    """sum_j phi(q_i) phi(k_j) v_j / sum_j phi(q_i) phi(k_j) over the keys that query i may see; 0 without any."""
    batch, heads, queries, keys = *q.shape[:3], k.shape[2]
    out = []
    for b in range(batch):
        kept = [j for j in range(keys) if key_mask is None or key_mask[b, j]]
        for h in range(heads):
            of_keys = {j: phi(k[b, h, j]) for j in kept}
            for i in range(queries):
                seen = [j for j in kept if not causal or j <= i + keys - queries]
                if not seen:
                    out.append(torch.zeros_like(q[b, h, i]))
                    continue
                weights = torch.stack([of_keys[j] for j in seen]) @ phi(q[b, h, i])
                out.append(weights @ v[b, h, seen] / weights.sum())
    return torch.stack(out).view(q.shape)
