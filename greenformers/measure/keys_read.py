"""Which part of the keys attention reads that stops by itself, such as DACS, on the texts that a model is given."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from greenformers.attention.dacs import Dacs


class KeysRead:
    """Counts over queries, heads and layers.

    Attributes:
        read: Number of kept keys that were read.
        in_sight: Number of kept keys that queries could have read, up to their own position where causal.
    """

    def __init__(self) -> None:
        self.read = self.in_sight = 0

    @property
    def share(self) -> float | None:
        """Which part of the keys in sight was read; None where there was none."""
        return self.read / self.in_sight if self.in_sight else None

    def _add(self, module: Dacs, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None) -> None:
        N, M = q.shape[2], k.shape[2]
        stops = module.stops(q, k, key_mask, query_mask=query_mask)
        of_text = torch.ones(len(q), M, dtype=torch.long, device=q.device) if key_mask is None else key_mask.long()
        before = torch.cat([of_text.new_zeros(len(q), 1), of_text.cumsum(1)], 1)  # (B, M + 1), of the first n keys
        last = torch.arange(1, N + 1, device=q.device) + M - N if module.shape.causal else stops.new_full((N,), M)
        if query_mask is None and not module.shape.cross and N <= M and key_mask is not None:
            query_mask = key_mask[:, M - N :]
        asks = torch.ones(len(q), N, device=q.device, dtype=torch.bool) if query_mask is None else query_mask
        read = before[:, None].expand(-1, q.shape[1], -1).gather(2, stops)
        self.read += int((read * asks[:, None]).sum())
        self.in_sight += q.shape[1] * int((before[:, last] * asks).sum())


@contextmanager
def keys_read(model: nn.Module) -> Iterator[KeysRead]:
    """Count the keys that every `dacs` in a model reads while this lasts, for which it computes each twice."""
    counts = KeysRead()

    def hook(module: nn.Module, given: tuple[Any, ...], options: dict[str, Any], _: Tensor) -> None:
        assert isinstance(module, Dacs)
        inputs = {"key_mask": None, "query_mask": None} | options
        inputs |= dict(zip(("q", "k", "v", "key_mask"), given, strict=False))
        del inputs["v"]
        counts._add(module, **inputs)

    handles = [m.register_forward_hook(hook, with_kwargs=True) for m in model.modules() if isinstance(m, Dacs)]
    try:
        yield counts
    finally:
        for handle in handles:
            handle.remove()
