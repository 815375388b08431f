"""What the cache of `generate` holds for mechanisms that decode with a state of fixed size: the state."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer


class StateLayer(CacheLayerMixin):
    """A layer of a cache that keeps a tuple of tensors (B, ...) in place of keys and values."""

    is_compileable = False

    def __init__(self) -> None:
        super().__init__()
        self.state: tuple[Tensor, ...] | None = None
        self.length = 0

    @classmethod
    def of(cls, cache: Cache, layer: int) -> "StateLayer":
        """The layer of a cache, which becomes one of this kind if it has not been used.

        Raises:
            ValueError: it holds keys and values, or makes room for a fixed number of them.
        """
        while len(cache.layers) <= layer:
            cache.layers.append(DynamicLayer())
        held = cache.layers[layer]
        if isinstance(held, cls):
            return held
        if type(held) is not DynamicLayer or held.get_seq_length():
            raise ValueError(f"a mechanism with a state needs an empty dynamic cache, got {type(held).__name__}")
        cache.layers[layer] = cls()
        return cast(StateLayer, cache.layers[layer])

    def advance(self, state: tuple[Tensor, ...], count: int) -> None:
        """The state after `count` positions more."""
        self.state, self.length, self.is_initialized = state, self.length + count, True

    def get_seq_length(self) -> int:  # noqa: D102
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: D102
        return self.length + query_length, 0

    def get_max_length(self) -> int:  # noqa: D102
        return -1

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: the first state comes from the mechanism."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Not available.

        Raises:
            ValueError: always: the state is all that is kept.
        """
        raise ValueError("a layer that keeps a state takes no keys and values")

    def reset(self) -> None:  # noqa: D102
        self.state, self.length, self.is_initialized = None, 0, False

    def offload(self) -> None:
        """Nothing: a state is small and stays on its device."""

    def prefetch(self) -> None:
        """Nothing: see `offload`."""

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:  # noqa: D102
        self._map(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:  # noqa: D102
        self._map(lambda x: x.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:  # noqa: D102
        self._map(lambda x: x[indices])

    def _map(self, function: Callable[[Tensor], Tensor]) -> None:
        if self.state is not None:
            self.state = type(self.state)(*map(function, self.state))
