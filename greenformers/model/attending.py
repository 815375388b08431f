"""How self-attention calls its mechanism: chosen once, when the block is built, by capabilities of the mechanism.

For the sequence alone, with c the codes of x and W the last factors of its projections, q = c_q W_q and so on:

    plain        out = mechanism(q, k, v)
    reduced      out = attend(q, reduce(c_k) W_k, reduce(c_v) W_v), so that W meets fewer positions

On top of a cache of the earlier positions:

    stepping     out, state = step(q, k, v, state), a state of fixed size in place of keys and values
    remembering  out = mechanism(q, [cached k; k], [cached v; v]), the last of which the cache keeps
    cached       out = mechanism(q, [earlier k; k], [earlier v; v]), all of which the cache keeps
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.cache_utils import Cache

from greenformers.attention import Attention, Role
from greenformers.model.beams import BeamLayer
from greenformers.model.cache import GrowingLayer, RecentLayer, StateLayer, check_place, length_of
from greenformers.model.projected import Projected
from greenformers.position import Position, Rotation

Codes = dict[str, Tensor]
KeyMask = Bool[Tensor, "B M"] | None
Mixed = tuple[Float[Tensor, "B H N D"], Float[Tensor, ""] | None]
"""Attention outputs, and in training the loss of a mechanism that has one."""


class Extras(NamedTuple):
    """Further inputs of some mechanisms besides queries, keys, values and their mask.

    Attributes:
        global_mask: True = a position that all see and that sees all (B, N), for mechanisms that take it.
        choice: Choice of keys that a mechanism with `choose` made at an earlier call on the same sequence; an empty
            dictionary is filled.
        relative: Relative positions that add to scores, in networks that have them.
        pairs: Which keys each query sees, or a bias of their scores, for mechanisms that take it.
        turn: Rotary positions and their angles for this sequence, in networks that have them.
        attentions: List that attention weights are appended to; None: they are not computed.
        inputs: Inputs of the layer at the queries (B, N, d), for mechanisms that take them.
        new: Number of new positions of the sequence, of which some may have no query.
        query_mask: True = keep (B, N), for mechanisms that take inputs, where a memory stands before the sequence.
    """

    global_mask: Bool[Tensor, "B N"] | None = None
    choice: dict[str, Tensor] | None = None
    turn: tuple[Position, Rotation] | None = None
    relative: Position | None = None
    pairs: Tensor | None = None
    attentions: list[Tensor] | None = None
    inputs: Float[Tensor, "B N d"] | None = None
    new: int = 0
    query_mask: Bool[Tensor, "B N"] | None = None


WithoutCache = Callable[[Projected, Codes, KeyMask, Extras], Mixed]
WithCache = Callable[[Projected, Codes, KeyMask, Extras, Cache], Mixed]


def without_cache(block: Projected) -> WithoutCache:
    """The strategy that calls a mechanism on a sequence alone."""
    return reduced if block.can_reduce else plain


def with_cache(mechanism: Attention, memory_length: int) -> WithCache:
    """The strategy that calls a mechanism on top of a cache.

    Args:
        mechanism: Mechanism of the attention slot.
        memory_length: Number of positions of a segment memory, besides compressed ones; 0: all positions are kept.
    """
    if mechanism.can_step:
        return stepping
    if memory_length:
        return partial(remembering, limit=memory_length + mechanism.compressed)
    return cached


def plain(block: Projected, codes: Codes, key_mask: KeyMask, extras: Extras) -> Mixed:
    """Attention of a sequence to itself."""
    return _call(block, _inputs(block, codes, extras), key_mask, extras)


def reduced(block: Projected, codes: Codes, key_mask: KeyMask, _: Extras) -> Mixed:
    """Attention to keys and values whose codes are shortened before the last factor."""
    k, v = (block.for_every_head(block.reduce(role, codes[role], key_mask)) for role in get_args(Role))
    return block.mechanism.attend(block.project("q", codes["q"]), k, v), None


def stepping(block: Projected, codes: Codes, key_mask: KeyMask, extras: Extras, cache: Cache) -> Mixed:
    """Attention on top of the state that the cache holds of the earlier positions."""
    if extras.attentions is not None:
        raise ValueError("output_attentions must be False on top of a state that stands for all earlier keys")
    given = {name: block.for_every_head(x) for name, x in _inputs(block, codes, extras).items()}
    held = StateLayer.of(cache, block.place)
    mask = None if key_mask is None else key_mask[:, -given["v"].shape[2] :]
    return held.attend(block.mechanism, **given, key_mask=mask), None


def remembering(
    block: Projected, codes: Codes, key_mask: KeyMask, extras: Extras, cache: Cache, *, limit: int
) -> Mixed:
    """Attention to cached keys and values and to new ones, those of a segment memory before those of the sequence.

    Args:
        block: The mechanism and its projections.
        codes: Codes of the queries of the sequence, and of keys and values of segment memory and sequence.
        key_mask: True = keep (B, P); its last columns are those of these keys.
        extras: Further inputs of the mechanism.
        cache: The cache of keys, values and mask.
        limit: Number of positions the cache keeps.
    """
    given = _inputs(block, codes, extras)
    held = RecentLayer.of(cache, block.place, limit)
    mask = None if key_mask is None else key_mask[:, -given["k"].shape[2] :]
    given["k"], given["v"], mask = held.add(given["k"], given["v"], mask, extras.new)
    return _call(block, given, mask, extras)


def cached(block: Projected, codes: Codes, key_mask: KeyMask, extras: Extras, cache: Cache) -> Mixed:
    """Attention to all earlier keys and values, from the cache, and to new ones."""
    mechanism = block.mechanism
    given, layer = _inputs(block, codes, extras), block.place
    GrowingLayer.make(cache, layer)
    held = cache.layers[layer] if layer < len(cache.layers) else None
    if isinstance(held, BeamLayer):
        if extras.relative is not None:
            raise ValueError("positions that add to scores have no beam search over shared keys")
        if extras.attentions is not None:
            raise ValueError("output_attentions must be False in a beam search over shared keys")
        return held.attend(**{name: block.for_every_head(x) for name, x in given.items()}), None
    # Keys that the mechanism does not read are cached as one number each: transformers counts positions by them.
    has_keys = "k" in codes or mechanism.shares_qk
    k, v = _held(block, given["k"] if has_keys else given["k"][..., :1], given["v"], cache)
    return _call(block, given | {"k": k if has_keys else v, "v": v}, key_mask, extras)


def of_some(
    block: Projected,
    codes: Codes,
    visible: Bool[Tensor, "b 1 S M"],
    rows: Int[Tensor, " b"],
    turn: tuple[Position, Rotation, Rotation] | None,
    cache: Cache | None,
) -> Float[Tensor, "b H S D"]:
    """Softmax attention of some positions of some sequences of a batch, whose keys are those of all positions.

    Args:
        block: The mechanism, one that takes `pairs`, and its projections.
        codes: Codes of the queries (b, S, r), and of keys and values (B, N, r).
        visible: Keys that each query sees (b, 1, S, M).
        rows: The sequences of the batch that have queries (b,).
        turn: Rotary positions, the angles of the queries and those of the keys, in networks that have them.
        cache: Keys and values of earlier positions; those of all N positions are added to it.
    """
    q, k, v = (block.project(name, codes[name]) for name in ("q", "k", "v"))
    if turn is not None:
        position, of_queries, of_keys = turn
        q, k = position.turn(q, of_queries), position.turn(k, of_keys)
    if cache is not None:
        k, v = _held(block, k, v, cache)
    given = {"q": q, "k": k[rows], "v": v[rows]}
    return _call(block, given, None, Extras(pairs=visible))[0]


def _held(block: Projected, k: Tensor, v: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
    """All keys and values, those of the cache and new ones, which are added to it."""
    layer = block.place
    check_place(cache, layer)
    GrowingLayer.make(cache, layer)
    k, v = cache.update(k, v, layer)
    # A static cache has places for later keys.
    total = length_of(cache, layer)
    return (k[:, :, :total], v[:, :, :total]) if k.shape[2] > total else (k, v)


def _inputs(block: Projected, codes: Codes, extras: Extras) -> dict[str, Tensor]:
    """Queries, keys, values and further projections of the mechanism; keys and values in their own heads."""
    projected = {name: block.project(name, code) for name, code in codes.items()}
    if extras.turn is not None:
        position, angles = extras.turn
        for name in {"q", "k", "q_global", "k_global"} & set(projected):
            turned = projected[name]
            own = Rotation(
                *(part[:, :, -turned.shape[2] :] for part in angles)
            )  # fewer queries than keys are the last positions
            projected[name] = position.turn(turned, own)
    if block.mechanism.shares_qk:
        projected["k"] = projected["q"]
    # An input that a mechanism has no projection for is read only for its length.
    return {"q": projected["v"], "k": projected["v"]} | projected


def _call(block: Projected, given: dict[str, Tensor], key_mask: KeyMask, extras: Extras) -> Mixed:
    """Call the mechanism with the extras that it takes."""
    mechanism = block.mechanism
    if block.shares_keys:
        given = {name: block.for_every_head(x) for name, x in given.items()}
    further: dict[str, Any] = {} if extras.global_mask is None else {"global_mask": extras.global_mask}
    if extras.relative is not None:
        further["relative"] = extras.relative
    if extras.pairs is not None:
        further["pairs"] = extras.pairs
    if mechanism.takes_inputs:
        further["inputs"] = extras.inputs
        if extras.query_mask is not None:
            further["query_mask"] = extras.query_mask
    if extras.choice is not None and mechanism.chooses:
        if not extras.choice:
            extras.choice["choice"] = mechanism.choose(**given, key_mask=key_mask)
        further |= extras.choice
    if block.training and mechanism.has_loss:
        out, loss = mechanism.forward_with_loss(**given, key_mask=key_mask, **further)
    else:
        out, loss = mechanism(**given, key_mask=key_mask, **further), None
    if extras.attentions is not None:
        v = given.pop("v")
        weights, added = mechanism.weights(**given, key_mask=key_mask, **further)
        own = weights.pop("v")
        whole = sum(weights.values(), own)
        extras.attentions.append(whole)
        # The output from the weights, so that these have a gradient. A query reads one kind of values.
        dropped = F.dropout(whole, getattr(mechanism, "dropout", 0.0), block.training)
        out = dropped @ v
        for name, kind_weights in weights.items():
            out = torch.where(kind_weights.any(-1, keepdim=True), dropped @ given[name], out)
        out = out + added
    return out, loss
