"""Layers of the cache of `generate`: a state of fixed size, all keys and values, or those of the last positions."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, StaticCache
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, StaticLayer

from greenformers.attention import Attention
from greenformers.attention._aligned import is_traced

Kind = TypeVar("Kind", bound=CacheLayerMixin)


State = tuple[Tensor, ...]
"""State of a mechanism in place of keys and values, see `Attention.step`."""


class Recent(NamedTuple):
    """State of a convolution: the inputs (B, K - 1, C) that the next position reads beside its own."""

    inputs: Tensor


class Past:
    """What a cache holds of the earlier positions of a sequence, see `greenformers.blocks.Past`.

    Args:
        cache: The cache of a decoder.

    Attributes:
        own: The part of it of the sequence itself, where another is of the encoder output.
    """

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.own: Cache = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache

    def recent(self, place: int, x: Float[Tensor, "B N C"], count: int) -> Float[Tensor, "B count+N C"]:
        """See `greenformers.blocks.Past.recent`."""
        return StateLayer.of(self.own, place).recent(x, count)


def make_room(cache: Cache, own: int, cross: int) -> None:
    """Add layers to a plain cache that was made with fewer than a network has places for.

    Args:
        cache: The cache of a decoder.
        own: Number of places of the sequence itself.
        cross: Number of places of the encoder output.
    """
    parts = [(cache, own)]
    if isinstance(cache, EncoderDecoderCache):
        parts = [(cache.self_attention_cache, own), (cache.cross_attention_cache, cross)]
    for part, count in parts:
        if type(part) is DynamicCache and part.layer_class_to_replicate is None and not part.offloading:
            part.layers += [DynamicLayer() for _ in range(count - len(part.layers))]


def check_place(cache: Cache, place: int) -> None:
    """Raise ValueError where a static cache, which cannot grow, has no place for keys."""
    if isinstance(cache, StaticCache) and place >= len(cache.layers):
        raise ValueError(
            f"a static cache has a place a layer, this network needs one more than its {len(cache.layers)}: let it grow"
        )


def length_of(cache: Cache, layer: int = 0) -> int:
    """Number of positions in a layer of a cache; while a program is exported, a symbol that stands for it."""
    length = cache.get_seq_length(layer)
    return int(length) if isinstance(length, Tensor) else length  # a static cache counts in a tensor


class WithWay(CacheLayerMixin):
    """A layer of a cache that also holds the function of one further token through a layer of the network.

    See `greenformers.model.next_token`. Copies and pickles leave it out, and it is built again.
    """

    way: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "way"}


class StateLayer(WithWay):
    """A layer of a cache that keeps a tuple of tensors (B, ...) in place of keys and values.

    For assisted generation, which takes back rejected tokens, it also keeps the state before the last call and a
    function that continues from there.
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
            ValueError: The layer holds keys and values, or is of another kind.
        """
        return _layer_of(cache, layer, cls, cls, "a state")

    def attend(
        self, mechanism: Attention, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None
    ) -> Float[Tensor, "B H N D"]:
        """Attention of the next N positions, which are added to the state; see `Attention.step`."""
        before = self.state
        out, state = mechanism.step(q, k, v, before, key_mask)

        def again(count: int) -> State:
            mask = None if key_mask is None else key_mask[:, :count]
            return mechanism.step(q[:, :, :0], k[:, :, :count], v[:, :, :count], before, mask)[1]

        self._follow(state, v.shape[2], again)
        return out

    def recent(self, x: Float[Tensor, "B N C"], count: int) -> Float[Tensor, "B count+N C"]:
        """The last `count` positions, 0 where there are none, and the next N, the last of which become the state."""
        before = x.new_zeros(x.shape[0], count, x.shape[2]) if self.state is None else self.state[0]

        def until(end: int) -> Recent:
            return Recent(torch.cat([before, x[:, :end]], 1)[:, end:])

        self._follow(until(x.shape[1]), x.shape[1], until)
        return torch.cat([before, x], 1)

    def _follow(self, state: State, count: int, again: Callable[[int], State]) -> None:
        """Hold the state after `count` more positions; `again` gives it after fewer of them."""
        self.before, self.count, self.again = self.state, count, again
        self.state, self.length, self.is_initialized = state, self.length + count, True

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last positions from the state; their number is given negative.

        Raises:
            ValueError: More positions than those of the last call are removed: there is no earlier state.
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
        """Do nothing: the first state comes from the mechanism."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Not available.

        Raises:
            ValueError: Always, as there is only a state.
        """
        raise ValueError("a layer that keeps a state takes no keys and values")

    def reset(self) -> None:  # noqa: D102
        self.state, self.length, self.is_initialized, self.way = None, 0, False, None
        self.before, self.count, self.again = None, 0, None

    def offload(self) -> None:
        """Do nothing: a state is small and stays on its device."""

    def prefetch(self) -> None:
        """Do nothing, see `offload`."""

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:  # noqa: D102
        self._change(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:  # noqa: D102
        self._change(lambda x: x.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:  # noqa: D102
        self._change(lambda x: x[indices])

    def _change(self, function: Callable[[Tensor], Tensor]) -> None:
        if self.state is not None:
            self.state = type(self.state)(*map(function, self.state))
        # A reordered state cannot be cropped.
        self.before, self.count, self.again = None, 0, None


class GrowingLayer(WithWay, DynamicLayer):
    """All keys and values, in tensors with room for more: new ones are written behind them, without copies.

    `keys` and `values` are views of the filled part. With gradients, and where tensors are traced, it behaves as
    `DynamicLayer`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rooms: dict[str, Tensor] = {}
        self.views: dict[str, Tensor] = {}

    @staticmethod
    def make(cache: Cache, layer: int) -> None:
        """Replace an unused plain layer of a cache by one of this kind."""
        if getattr(cache, "offloading", False):
            return
        while len(cache.layers) <= layer and cache.layer_class_to_replicate is DynamicLayer:
            cache.layers.append(GrowingLayer())
        held: Any = cache.layers[layer] if layer < len(cache.layers) else None
        if type(held) is DynamicLayer and not held.is_initialized:
            cache.layers[layer] = GrowingLayer()

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Add the keys and values of N positions, and return all (B, H, M, D)."""
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
        """The tensor `held` followed by `new`."""
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
        """Whether the storage still begins with `held`, and can be written to."""
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
        limit: Number of positions that are kept.
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
            ValueError: The layer holds keys and values of another kind.
        """
        return _layer_of(cache, layer, cls, lambda: cls(limit), "a memory")

    @classmethod
    def at(cls, cache: Cache, layer: int) -> bool:
        """Whether a cache has a layer of this kind there."""
        return layer < len(cache.layers) and isinstance(cache.layers[layer], cls)

    def add(self, k: Tensor, v: Tensor, mask: Tensor | None, count: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """The kept keys and values followed by new ones (B, H, M, D), and their mask (B, M), None where all are kept.

        Args:
            k: Keys of `count` positions, in the first call behind those of a segment memory.
            v: Values, as `k`.
            mask: True = keep, for these keys.
            count: Number of positions without those of the segment memory.
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
            ValueError: Always, as dropped positions cannot be restored.
        """
        raise ValueError("a memory of the last positions cannot be cropped")


def _layer_of(cache: Cache, layer: int, kind: type[Kind], make: Callable[[], Kind], content: str) -> Kind:
    """The layer of a cache, which becomes one of a kind if it has not been used."""
    while len(cache.layers) <= layer:
        cache.layers.append(DynamicLayer())
    held: Any = cache.layers[layer]
    if isinstance(held, kind):
        return held
    if type(held) not in (DynamicLayer, StaticLayer) or held.get_seq_length():
        raise ValueError(f"a mechanism with {content} needs an empty plain cache, got {type(held).__name__}")
    new = make()
    cache.layers[layer] = new
    return new


def _or_all(mask: Tensor | None, k: Tensor) -> Tensor:
    return torch.ones(k.shape[0], k.shape[2], dtype=torch.bool, device=k.device) if mask is None else mask
