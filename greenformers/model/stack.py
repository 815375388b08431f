"""A stack of layers with any residual and depth: one after the other, reversible, or as a kind of depth calls them."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.cache_utils import Cache

from greenformers.attention._aligned import is_traced
from greenformers.attention._contract import accurate
from greenformers.depth import Depth, Exits, Running
from greenformers.model.block import BlockLayer, EncoderLayer, feed
from greenformers.model.cache import length_of
from greenformers.model.memory import SegmentMemory
from greenformers.model.reversible import Half, reversible
from greenformers.position import Rotation


class Ran(NamedTuple):
    """What a stack gives.

    Attributes:
        x: Output of the last layer (B, N, d).
        loss: In training, the sum of the losses of mechanisms, feed-forward blocks and a kind of depth, or None.
        memory: The next segment memory, where one was given.
        steps: Number of layers of each position (B, N), of kinds of depth that choose it.
        exits: In training, what the head learns to score, of kinds of depth with exits.
    """

    x: Float[Tensor, "B N d"]
    loss: Float[Tensor, ""] | None = None
    memory: SegmentMemory | None = None
    steps: Int[Tensor, "B N"] | None = None
    exits: Exits | None = None


def run(
    layers: Iterable[Any],
    x: Float[Tensor, "B N d"],
    key_mask: Bool[Tensor, "B M"] | None = None,
    *,
    past_key_values: Cache | None = None,
    global_mask: Bool[Tensor, "B N"] | None = None,
    memory: SegmentMemory | None = None,
    positions: Int[Tensor, "b N"] | None = None,
    pairs: Tensor | None = None,
    attentions: list[Tensor] | None = None,
    last: int = 0,
    depth: Depth | None = None,
    score: Callable[[Tensor], Tensor] | None = None,
) -> Ran:
    """Run a stack.

    Args:
        layers: Layers of an encoder, or of a decoder without encoder.
        x: Input of the first layer (B, N, d).
        key_mask: True = keep (B, M).
        past_key_values: Keys and values of the earlier positions.
        global_mask: True = a position that all see, for mechanisms that take it.
        memory: Segment memory.
        pairs: Which keys each query sees, or a bias of their scores, for mechanisms that take it.
        positions: Positions of `x`; by default those after the cached ones, or 0 to N - 1.
        attentions: List that the attention weights of each layer (B, H, N, M) are appended to; None: they are not
            computed.
        last: On top of a cache, number of positions at the end to compute outputs of; 0: all.
        depth: Kind of depth that calls the layers; None: all, one after the other.
        score: Function from states (..., d) to scores of tokens, for kinds of depth with exits.

    Raises:
        ValueError: The layers do not take an argument, or cannot return attention weights.
    """
    whole = list(layers)
    rotation = rotation_of(whole, x, past_key_values, positions)
    options = {"past_key_values": past_key_values, "global_mask": global_mask, "rotation": rotation, "pairs": pairs}
    if whole[0].reversible or isinstance(whole[0], BlockLayer):
        if pairs is not None:
            raise ValueError("a mask of queries and keys is for layers of attention one after the other")
        if attentions is not None:
            raise ValueError("output_attentions is for layers of attention one after the other: it must be False here")
    if whole[0].reversible:
        if memory is not None:
            raise ValueError("a reversible stack takes no memory: it keeps no inputs of its layers")
        halves = [half for layer in whole for half in _halves(layer, key_mask, past_key_values, global_mask, rotation)]
        return Ran(*reversible(x, halves, twice=past_key_values is None))  # a cache would hold its keys twice
    if isinstance(whole[0], BlockLayer):
        if any(argument is not None for argument in (global_mask, memory)):
            raise ValueError("blocks of their own kind take no global mask and no memory of segments")
        carried: Tensor | None = None
        for layer in whole:
            x, carried = layer(x, key_mask, carried, past_key_values=past_key_values)
        return Ran(x)
    if depth is not None:
        if memory is not None:
            raise ValueError("a kind of depth takes no memory of segments: some positions have no state in some layers")

        def layer_at(n: int, u: Tensor, running: Running | None) -> Any:
            return whole[n](u, key_mask, **options, attentions=attentions, running=running)

        further = {"score": score} if depth.exits else {}
        return through(depth, x, layer_at, key_mask, past_key_values, positions, **further)
    losses: list[Tensor] = []
    inputs: list[Tensor] = []
    for index, layer in enumerate(whole):
        if memory is not None:
            inputs.append(x)
            mask = memory.key_mask(index, key_mask, x)
            out = layer(x, mask, **options, memory=memory.of(index), attentions=attentions)
        else:
            own_last = last if index == len(whole) - 1 else 0
            out = layer(x, key_mask, **options, attentions=attentions, last=own_last)
        if isinstance(out, tuple):
            x, own = out
            losses.append(own)
        else:
            x = cast(Tensor, out)
    following = None
    if memory is not None:
        following, own = memory.after(whole, inputs, key_mask)
        losses += [] if own is None else [own]
    return Ran(x, sum(losses[1:], losses[0]) if losses else None, following)


def through(
    depth: Depth,
    x: Float[Tensor, "B N d"],
    layer: Callable[[int, Tensor, Running | None], Any],
    key_mask: Bool[Tensor, "B M"] | None,
    cache: Cache | None,
    positions: Int[Tensor, "b N"] | None,
    **further: Any,
) -> Ran:
    """Let a kind of depth call the layers.

    Args:
        depth: The kind of depth.
        x: Input of the stack (B, N, d).
        layer: Function of the number of a layer, its input and the positions that are computed: its output, or in
            training this and a loss.
        key_mask: True = keep (B, M); its last N columns are those of `x`.
        cache: Keys and values of the earlier positions.
        positions: Positions of `x`; None: 0 to N - 1.
        **further: Further arguments of kinds with exits.
    """
    losses: list[Tensor] = []

    def step(n: int, u: Tensor, running: Running | None) -> Tensor:
        out = layer(n, u, running)
        if isinstance(out, tuple):
            out, own = out
            losses.append(own)
        return cast(Tensor, out)

    mask = None if key_mask is None else key_mask[:, -x.shape[1] :]
    gone = depth(x, step, mask=mask, positions=positions, keeps=cache is not None, **further)
    if gone.passes > 1:
        losses = [own / gone.passes for own in losses]
    losses += [] if gone.loss is None else [gone.loss]
    loss = sum(losses[1:], losses[0]) if losses else None
    return Ran(gone.x, loss, steps=gone.steps, exits=gone.exits)


def mean_of(x: Float[Tensor, "B M d"], mask: Bool[Tensor, "B M"] | None) -> Float[Tensor, "B d"]:
    """The mean over kept positions."""
    if mask is None:
        return x.mean(1)
    total = x.masked_fill(~mask[..., None], 0.0).sum(1, dtype=accurate(x))  # which float16 might not hold
    return (total / mask.sum(1, keepdim=True).clamp(min=1)).to(x.dtype)


def rotation_of(
    layers: Iterable[Any],
    x: Float[Tensor, "B N d"],
    cache: Cache | None = None,
    positions: Int[Tensor, "b N"] | None = None,
) -> Rotation | None:
    """The angles of rotary positions, for all layers; None where no layer has them."""
    turning = (layer.attention.position for layer in layers if hasattr(layer, "attention"))
    position = next((p for p in turning if p is not None and p.acts == "rotation"), None)
    if position is None:
        return None
    if positions is None:
        past = 0 if cache is None else length_of(cache)
        positions = torch.arange(past, past + x.shape[1], device=x.device)[None]
    angles: Rotation = position.rotation(positions, x.dtype)
    return angles


def _halves(
    layer: EncoderLayer,
    key_mask: Tensor | None,
    cache: Cache | None,
    global_mask: Tensor | None,
    rotation: Rotation | None,
) -> tuple[Half, Half]:
    """Attention and feed-forward of a layer, each behind its norm."""
    attention, norm, dropout = layer.attention, layer.attention_norm, layer.dropout

    def attend(x: Tensor, choice: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        mixed, loss = attention.mix(norm(x), key_mask, cache, global_mask, choice, rotation=rotation)
        return dropout(attention.output(mixed)), loss

    return (
        Half(attend, [*attention.parameters(), *norm.parameters()]),
        Half(
            partial(_feed_forward, layer, key_mask),
            [*layer.feed_forward.parameters(), *layer.feed_forward_norm.parameters()],
        ),
    )


def _feed_forward(
    layer: EncoderLayer, key_mask: Tensor | None, x: Tensor, choice: dict[str, Tensor]
) -> tuple[Tensor, Tensor | None]:
    added, loss = feed(layer.feed_forward, layer.feed_forward_norm(x), key_mask, choice)
    return layer.dropout(added), loss


def kept_by(name: str, mask: Tensor, *, read: bool = True) -> Tensor:
    """A mask of 1 or True = keep and 0 or False = not, as True = keep.

    Args:
        name: Name of the mask, for the message.
        mask: The mask, of any shape.
        read: Whether its values may be read, for which a GPU waits.

    Raises:
        ValueError: A value is neither 0 nor 1; of what is added to scores, 0 would be taken for "not".
    """
    if read and mask.dtype != torch.bool and not is_traced(mask):
        others = mask[(mask != 0) & (mask != 1)]
        if others.numel():
            raise ValueError(f"{name} must be 1 where a position is kept and 0 elsewhere, got {others[0].item()}")
    return mask.bool()


def of_keys(mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """A mask as keys (B, M), or, as the second, as queries and keys (B, 1 or H, N, M); the other is None.

    The latter includes the causal mask: True = sees, or, as floats, a bias of scores, where the least number of the
    dtype hides a key. It is for mechanisms that take it (`full`).
    """
    if mask is None or mask.dim() != 4:
        return mask, None
    return None, mask if mask.is_floating_point() else mask.bool()
