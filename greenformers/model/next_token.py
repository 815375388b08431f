"""A layer for the next token, on top of a cache, as a plain sequence of operations.

For a single token the calls of modules take longer than the operations in them: weights push the program out of the
caches of the processor. So this function (the "way") is built once for every cache, and stored with it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from greenformers._torch import flat, is_watched
from greenformers.attention._aligned import is_traced
from greenformers.model.cache import GrowingLayer, StateLayer
from greenformers.position import Rotation

Way = Callable[[Tensor, Any, Tensor | None, Rotation | None], Tensor]
"""Function from the input of a layer for one token (B, 1, d), its layer of the cache, the mask of all keys and the
angles of the position of the token, to the output of the layer."""

_PROJECTIONS = ("q", "k", "v")


def way_of(layer: Any, x: Tensor, cache: Cache) -> tuple[Way, Any] | None:
    """The way of one token through a layer, and its layer of the cache; None where the layer itself must be called.

    Args:
        layer: A layer of attention and feed-forward.
        x: Input of the layer (B, 1, d).
        cache: Cache of the earlier positions.
    """
    if torch.is_grad_enabled() or layer.training or is_traced(x) or layer.index >= len(cache.layers):
        return None
    held: Any = cache.layers[layer.index]
    if type(held) not in (GrowingLayer, StateLayer) or not held.is_initialized:
        return None
    if held.way is None or held.way[0] is not layer:
        held.way = layer, _built(layer, _on_top_of_state if type(held) is StateLayer else _on_top_of_keys)
    way = held.way[1]
    return None if way is None else (way, held)


def _built(layer: Any, mixture: Callable[..., Tensor]) -> Way | None:
    """The way, or None where a module of the layer was replaced or must be called as a module."""
    attention, position = layer.attention, layer.attention.position
    turns = position is not None and position.acts == "rotation"
    is_plain = attention.mechanism.projections == _PROJECTIONS and attention.normalised is None
    is_plain = is_plain and not attention.mechanism.takes_inputs
    if not (is_plain and layer.pre_norm and (turns or position is None)):
        return None
    if any(is_watched(module) for module in layer.modules() if module is not layer):
        return None
    projections, output = [flat(attention.projections[name]) for name in _PROJECTIONS], flat(attention.output)
    attention_norm, feed_forward_norm = flat(layer.attention_norm), flat(layer.feed_forward_norm)
    feed_forward, mix = layer.feed_forward.flat(), partial(mixture, attention)
    heads, key_heads, width = attention.mechanism.shape.heads, attention.key_heads, attention.head_dim

    def way(x: Tensor, held: Any, key_mask: Tensor | None, rotation: Rotation | None) -> Tensor:
        y, batch = attention_norm(x), x.shape[0]
        q, k, v = (projection(y).view(batch, -1, 1, width) for projection in projections)
        if turns:
            q, k = position.turn(torch.cat([q, k], 1), rotation).split([heads, key_heads], 1)
        x = x + output(mix(held, q, k, v, key_mask).reshape(batch, 1, -1))
        return x + feed_forward(feed_forward_norm(x))

    return way


def _on_top_of_keys(
    attention: Any, held: GrowingLayer, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None
) -> Tensor:
    k, v = held.update(k, v)
    mechanism = attention.mechanism
    as_they_are = mechanism.last_shares_keys if key_mask is None else mechanism.last_shares_masked
    if attention.shares_keys and not as_they_are:
        k, v = attention.for_every_head(k), attention.for_every_head(v)
    out: Tensor = mechanism.last(q, k, v, key_mask)
    return out


def _on_top_of_state(
    attention: Any, held: StateLayer, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None
) -> Tensor:
    if attention.shares_keys:
        k, v = attention.for_every_head(k), attention.for_every_head(v)
    return held.attend(attention.mechanism, q, k, v, None if key_mask is None else key_mask[:, -1:])
