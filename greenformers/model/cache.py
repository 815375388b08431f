"""What the cache of `generate` holds in place of all keys and values: a state of fixed size, or the last positions."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, StaticLayer

from greenformers.attention import Attention
from greenformers.attention._aligned import is_traced

Kind = TypeVar("Kind", bound=CacheLayerMixin)


State = tuple[Tensor, ...]
"""What a mechanism keeps in place of keys and values, see `Attention.step`."""


class WithWay(CacheLayerMixin):
    """A layer of a cache that keeps with it how one token more goes through a layer of a network.

    See `greenformers.model.next_token`. It is found anew by whoever copies or reads it.
    """

    way: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "way"}


class StateLayer(WithWay):
    """A layer of a cache that keeps a tuple of tensors (B, ...) in place of keys and values.

    For assisted generation, which takes back what was guessed wrong, it also keeps the state before the last call and
    how to go on from there.
    """

    is_compileable = False

    def __init__(self) -> None:
        super().__init__()
        self.state: State | None = None
        self.length = 0
        self.before: State | None = None
        self.count = 0
        self.again: Callable[[int], State] | None = None

    @classmethod
    def of(cls, cache: Cache, layer: int) -> "StateLayer":
        """The layer of a cache, which becomes one of this kind if it has not been used.

        Raises:
            ValueError: it holds keys and values, or makes room for a fixed number of them.
        """
        return _layer_of(cache, layer, cls, cls, "a state")

    def attend(
        self, mechanism: Attention, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None
    ) -> Float[Tensor, "B H N D"]:
        """Attention of the next N positions, which the state is of from now on; see `Attention.step`."""
        before = self.state
        out, state = mechanism.step(q, k, v, before, key_mask)

        def again(some: int) -> State:
            mask = None if key_mask is None else key_mask[:, :some]
            return mechanism.step(q[:, :, :0], k[:, :, :some], v[:, :, :some], before, mask)[1]

        self.before, self.count, self.again = before, v.shape[2], again
        self.state, self.length, self.is_initialized = state, self.length + v.shape[2], True
        return out

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last positions, given as a number that is not above 0.

        Raises:
            ValueError: more than those of the last call, before which there is no state to go back to.
        """
        removed = -tokens_to_remove
        if not 0 <= removed <= self.count:
            raise ValueError(
                f"a state can take back 0 to {self.count} positions, those of the last call; got {removed}"
            )
        if not removed or self.again is None:
            return
        self.count, self.length = self.count - removed, self.length - removed
        self.state = self.again(self.count) if self.count else self.before

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
        self.state, self.length, self.is_initialized, self.way = None, 0, False, None
        self.before, self.count, self.again = None, 0, None

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
        # What was put in another order cannot be taken back.
        self.before, self.count, self.again = None, 0, None


class GrowingLayer(WithWay, DynamicLayer):
    """All keys and values, in tensors with room for some more: new ones are written behind them, and none is copied.

    `keys` and `values` are views of what is there. Where a gradient may be wanted of them, and where nobody can look
    at what they are, all is as in `DynamicLayer`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rooms: dict[str, Tensor] = {}
        self.views: dict[str, Tensor] = {}

    @staticmethod
    def make(cache: Cache, layer: int) -> None:
        """Let an unused plain layer of a cache be one of this kind."""
        if getattr(cache, "offloading", False):
            return
        while len(cache.layers) <= layer and cache.layer_class_to_replicate is DynamicLayer:
            cache.layers.append(GrowingLayer())
        held: Any = cache.layers[layer] if layer < len(cache.layers) else None
        if type(held) is DynamicLayer and not held.is_initialized:
            cache.layers[layer] = GrowingLayer()

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, M, D) with those of N positions more."""
        if torch.is_grad_enabled() or is_traced(key_states):
            return super().update(key_states, value_states)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys = self._with("keys", self.keys, key_states)
        self.values = self._with("values", self.values, value_states)
        return self.keys, self.values

    def reset(self) -> None:  # noqa: D102
        super().reset()
        self.rooms, self.views, self.way = {}, {}, None

    def _with(self, name: str, held: Tensor | None, new: Tensor) -> Tensor:
        """What is held, and `new` behind it."""
        before = 0 if held is None or not held.numel() else held.shape[2]
        count, room = new.shape[2], self.rooms.get(name)
        total = before + count
        if room is None or total > room.shape[2] or (held is not None and before and not self._begins(name, held)):
            room = new.new_empty(*new.shape[:2], total + max(_ROOM, total // 4), new.shape[3])
            if held is not None and before:
                room[:, :, :before] = held
            self.rooms[name] = room
        room.narrow(2, before, count).copy_(new)
        self.views[name] = room.narrow(2, 0, total)
        return self.views[name]

    def _begins(self, name: str, held: Tensor) -> bool:
        """Whether `held` is still what the room begins with, and this can be written to."""
        room = self.rooms[name]
        if room.is_inference() != torch.is_inference_mode_enabled():
            return False
        if held is self.views.get(name):
            return True
        same = held.stride() == room.stride() and held.shape[:2] == room.shape[:2]
        return same and held.data_ptr() == room.data_ptr()


_ROOM = 64  # positions at least


class RecentLayer(DynamicLayer):
    """A layer of a cache that keeps the keys and values of the last positions, those of a segment memory among them.

    Args:
        limit: how many are kept.
    """

    is_compileable = False

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit, self.length = limit, 0
        self.mask: Tensor | None = None

    @classmethod
    def of(cls, cache: Cache, layer: int, limit: int) -> "RecentLayer":
        """The layer of a cache, which becomes one of this kind if it has not been used.

        Raises:
            ValueError: it holds keys and values of its own kind.
        """
        return _layer_of(cache, layer, cls, lambda: cls(limit), "a memory")

    def add(self, k: Tensor, v: Tensor, mask: Tensor | None, count: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys and values of what is kept and of what is given (B, H, M, D), and their mask (B, M), None for all.

        Args:
            k: keys: of a memory, where there was nothing yet, and of `count` positions.
            v: values, alike.
            mask: True = keep, of the same.
            count: of positions, the memory's left out.
        """
        if not self.is_initialized:
            self.lazy_initialization(k, v)
        keys, values = cast(Tensor, self.keys), cast(Tensor, self.values)
        if keys.numel():
            if self.mask is not None or mask is not None:
                mask = torch.cat([_or_all(self.mask, keys), _or_all(mask, k)], 1)
            k, v = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        self.length += count
        first = max(0, k.shape[2] - self.limit)
        self.keys, self.values = k[:, :, first:], v[:, :, first:]
        self.mask = None if mask is None else mask[:, first:]
        return k, v, mask

    def get_seq_length(self) -> int:  # noqa: D102
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: D102
        return self.length + query_length, 0

    def reset(self) -> None:  # noqa: D102
        super().reset()
        self.length, self.mask = 0, None

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:  # noqa: D102
        super().reorder_cache(beam_idx)
        self.mask = None if self.mask is None else self.mask.index_select(0, beam_idx.to(self.mask.device))

    def batch_repeat_interleave(self, repeats: int) -> None:  # noqa: D102
        super().batch_repeat_interleave(repeats)
        self.mask = None if self.mask is None else self.mask.repeat_interleave(repeats, dim=0)

    def batch_select_indices(self, indices: Tensor) -> None:  # noqa: D102
        super().batch_select_indices(indices)
        self.mask = None if self.mask is None else self.mask[indices]

    def crop(self, *_: Any, **__: Any) -> None:
        """Not available.

        Raises:
            ValueError: always: what was forgotten cannot be brought back.
        """
        raise ValueError("a memory of the last positions cannot be cropped")


def _layer_of(cache: Cache, layer: int, kind: type[Kind], make: Callable[[], Kind], what: str) -> Kind:
    """The layer of a cache, which becomes one of a kind if it has not been used."""
    while len(cache.layers) <= layer:
        cache.layers.append(DynamicLayer())
    held: Any = cache.layers[layer]
    if isinstance(held, kind):
        return held
    if type(held) not in (DynamicLayer, StaticLayer) or held.get_seq_length():
        raise ValueError(f"a mechanism with {what} needs an empty plain cache, got {type(held).__name__}")
    made = make()
    cache.layers[layer] = made
    return made


def _or_all(mask: Tensor | None, k: Tensor) -> Tensor:
    return torch.ones(k.shape[0], k.shape[2], dtype=torch.bool, device=k.device) if mask is None else mask
