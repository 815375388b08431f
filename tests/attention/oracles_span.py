"""Adaptive span and DACS, one query at a time."""

import math
from typing import Any

import torch
from torch import Tensor


def adaptive_span(module: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """Sukhbaatar 2019, eq. 5: exp(score) m(distance), over the sum of these."""
    N, M, past = q.shape[2], k.shape[2], k.shape[2] - q.shape[2]
    out = []
    for b, h, i in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        query = q[b, h, i]
        z = torch.sigmoid((query * module.v[h]).sum() + module.b[h]) if module.dynamic else module.z[h].clamp(0, 1)
        distances = {j: i + past - j for j in range(M) if key_mask is None or key_mask[b, j]}
        seen = [j for j, d in distances.items() if abs(d) < module.span and not (module.shape.causal and d < 0)]
        m = [((z * module.span - abs(distances[j])) / module.ramp + 1).clamp(0, 1) for j in seen]
        if not sum(m) > 0:
            out.append(torch.zeros_like(query))
            continue
        weights = torch.stack(m) * torch.exp(k[b, h, seen] @ query / math.sqrt(len(query)))
        out.append(weights @ v[b, h, seen] / weights.sum())
    assert N * q.shape[0] * q.shape[1] == len(out)
    return torch.stack(out).view(q.shape)


def dacs(module: Any, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """Li 2020, eq. 5-8, key after key; a query that is masked itself stops nowhere."""
    out = torch.zeros_like(q)
    past = k.shape[2] - q.shape[2]
    own = key_mask if past == 0 and not module.shape.cross else None
    rows = []
    for b, h in torch.cartesian_prod(*map(torch.arange, q.shape[:2])).tolist():
        last = 0
        for i in range(q.shape[2]):
            had, stop, met = 0.0, k.shape[2], []
            shares = torch.sigmoid(k[b, h] @ q[b, h, i] / math.sqrt(q.shape[3]))
            limit = k.shape[2] if module.look_ahead is None else min(k.shape[2], last + module.look_ahead)
            for j in range(k.shape[2]):
                if had >= 1:
                    stop = j
                    break
                hidden = (key_mask is not None and not key_mask[b, j]) or (module.shape.causal and j > i + past)
                if hidden:
                    continue
                had += shares[j].item()
                if j < limit:
                    met.append(j)
            masked = own is not None and not own[b, i]
            last = limit if masked else min(stop, limit)
            if module.look_ahead is not None and not masked:
                last = min(stop, last)
            rows.append(shares[met] @ v[b, h, met])
    return torch.stack(rows).view(out.shape)
