"""A stack of layers, whatever its residual: one after the other, or reversible."""

from collections.abc import Iterable
from functools import partial
from typing import Any, cast

from jaxtyping import Bool, Float
from torch import Tensor
from transformers.cache_utils import Cache

from greenformers.model.block import EncoderLayer
from greenformers.model.reversible import Half, reversible


def run(
    layers: Iterable[Any],
    x: Float[Tensor, "B N d"],
    key_mask: Bool[Tensor, "B M"] | None = None,
    *,
    past_key_values: Cache | None = None,
    global_mask: Bool[Tensor, "B N"] | None = None,
) -> tuple[Float[Tensor, "B N d"], Float[Tensor, ""] | None]:
    """The output of the last layer, and in training the sum of the mechanisms' own losses, None where none has any.

    Args:
        layers: of `EncoderLayer`, encoder or decoder.
        x: input of the first one.
        key_mask: True = keep (B, M).
        past_key_values: keys and values of the positions before.
        global_mask: True = a position that all see, for mechanisms that take it.
    """
    whole = list(layers)
    given = {"past_key_values": past_key_values, "global_mask": global_mask}
    if whole[0].reversible:
        halves = [half for layer in whole for half in _halves(layer, key_mask, past_key_values, global_mask)]
        return reversible(x, halves)
    loss: Tensor | None = None
    for layer in whole:
        out = layer(x, key_mask, **given)
        if isinstance(out, tuple):
            x, own = out
            loss = own if loss is None else loss + own
        else:
            x = cast(Tensor, out)
    return x, loss


def _halves(
    layer: EncoderLayer, key_mask: Tensor | None, cache: Cache | None, global_mask: Tensor | None
) -> tuple[Half, Half]:
    """Attention and feed-forward of a layer, each behind its norm."""
    attention, norm, dropout = layer.attention, layer.attention_norm, layer.dropout

    def attend(x: Tensor, choice: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        mixed, loss = attention.mix(norm(x), key_mask, cache, global_mask, choice)
        return dropout(attention.output(mixed)), loss

    return (
        Half(attend, [*attention.parameters(), *norm.parameters()]),
        Half(
            partial(_feed_forward, layer),
            [*layer.feed_forward.parameters(), *layer.feed_forward_norm.parameters()],
        ),
    )


def _feed_forward(layer: EncoderLayer, x: Tensor, _: dict[str, Tensor]) -> tuple[Tensor, None]:
    return layer.dropout(layer.feed_forward(layer.feed_forward_norm(x))), None
