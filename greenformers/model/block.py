"""The layer of attention and feed-forward with residuals, and layers of other kinds. Vaswani 2017, 3.1."""

import copy
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import repeat
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from greenformers import blocks
from greenformers.depth import Running
from greenformers.feed_forward import FeedForward, Size, build
from greenformers.lowrank.feed_forward import can_slice, slice_length
from greenformers.model.attention import CrossAttention, SelfAttention
from greenformers.model.cache import Past
from greenformers.model.config import GreenformerConfig
from greenformers.model.next_token import way_of
from greenformers.model.norm import norm_of
from greenformers.model.projected import constant
from greenformers.position import Rotation


class Layer(GradientCheckpointingLayer):
    """A layer of a stack; `output_hidden_states` returns its input.

    Attributes:
        index: Number of the layer in its stack.
    """

    index: int


class EncoderLayer(Layer):
    """Attention and feed-forward with residuals, and layer norm after ("post") or before ("pre") each block.

    With `causal` it is also the layer of a decoder without an encoder. A "reversible" layer is run by `stack.run`.
    """

    def __init__(self, config: GreenformerConfig, layer: int, *, causal: bool = False) -> None:
        super().__init__()
        self.attention = SelfAttention(config, layer, causal=causal)
        self.feed_forward = feed_forward_of(config, layer, causal=causal)
        for last in (self.attention.output, getattr(self.feed_forward, "down", None)):
            for part in () if last is None else last.modules():  # a low-rank layer has two factors
                part.into_residual = True  # initialised smaller in a causal stack, see `initial_std`
        self.attention_norm, self.feed_forward_norm = norm_of(config), norm_of(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.index = layer
        residual = config.resolved("residual", causal=causal)
        self.pre_norm, self.reversible = residual == "pre", residual == "reversible"
        self.needs_final_norm = residual != "post"

    def forward(
        self,
        x: Float[Tensor, "B N d"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        past_key_values: Cache | None = None,
        global_mask: Bool[Tensor, "B N"] | None = None,
        memory: Float[Tensor, "B m d"] | None = None,
        rotation: Rotation | None = None,
        pairs: Tensor | None = None,
        attentions: list[Tensor] | None = None,
        last: int = 0,
        running: Running | None = None,
    ) -> Float[Tensor, "B N d"] | tuple[Float[Tensor, "B N d"], Float[Tensor, ""]]:
        """One layer (B, N, d); in inference on the CPU, in slices that stay in its cache.

        On top of a cache, with `last` above 0, outputs of the `last` positions only: others are keys and values alone.
        With `running`, outputs (b, S, d) of these positions only.

        In training it also returns the loss of a mechanism or a feed-forward block that has one.
        """
        if self.reversible:
            raise ValueError("a reversible layer has two streams: it is run by its stack, not by itself")
        if running is not None:
            alone = global_mask is None and pairs is None and attentions is None
            return self._of_some(
                x, running, key_mask, past_key_values, rotation, alone=alone, global_mask=global_mask, pairs=pairs,
                attentions=attentions,
            )  # fmt: skip
        if (
            x.shape[1] == 1
            and past_key_values is not None
            and all(argument is None for argument in (global_mask, memory, pairs, attentions))
        ):
            step = way_of(self, x, past_key_values)
            if step is not None:
                way, held = step
                return way(x, held, key_mask, rotation)
        # With gradients every intermediate tensor is kept anyway; and an accelerator is faster on large tensors.
        # The same in training without gradients: a checkpoint computes the layer again with them.
        slices_fit = not (torch.is_grad_enabled() or self.training) and x.device.type == "cpu"
        slices_fit = slices_fit and self.feed_forward.by_position and can_slice(x)
        tokens = slice_length(self.feed_forward.inner_width)
        # Cached keys and values are those of the whole batch.
        whole_batch = past_key_values is not None or memory is not None or attentions is not None
        if whole_batch or pairs is not None or not slices_fit:
            earlier = None if memory is None else self._before(memory)
            mixed, loss = self.attention.mix(
                self._before(x), key_mask, past_key_values, global_mask, memory=earlier, rotation=rotation, pairs=pairs,
                attentions=attentions, last=last,
            )  # fmt: skip
            if last and past_key_values is not None:
                x, mixed = x[:, -last:], mixed[:, -last:]
            if slices_fit and x.shape[0] * x.shape[1] > tokens:
                return self._after_in_slices(x, mixed, key_mask, tokens)
            out, own = self._after(x, mixed, key_mask)
            loss = own if loss is None else loss if own is None else loss + own
            return out if loss is None else (out, loss)
        rows = max(1, tokens // x.shape[1])
        masks = (repeat(None) if mask is None else mask.split(rows) for mask in (key_mask, global_mask))
        angles = repeat(rotation) if rotation is None or len(rotation.cos) == 1 else _split(rotation, rows)
        slices = zip(x.split(rows), *masks, angles, strict=False)
        parts = [self._in_slices(x_rows, key, wide, turn, tokens) for x_rows, key, wide, turn in slices]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _of_some(
        self,
        x: Tensor,
        running: Running,
        key_mask: Tensor | None,
        cache: Cache | None,
        rotation: Rotation | None,
        *,
        alone: bool,
        **further: Any,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The layer at some positions; a mechanism that cannot take queries by themselves computes all of them."""
        y, loss = self._before(x), None
        if alone and self.attention.picks_from(cache):
            mixed = self.attention.mix_some(y, running, key_mask, cache, rotation)
        else:
            mixed, loss = self.attention.mix(y, key_mask, cache, rotation=rotation, **further)
            mixed = running.take(mixed)
        out, own = self._after(running.take(x), mixed, running.mask)
        loss = own if loss is None else loss if own is None else loss + own
        return out if loss is None else (out, loss)

    def _in_slices(
        self, x: Tensor, key_mask: Tensor | None, global_mask: Tensor | None, rotation: Rotation | None, tokens: int
    ) -> Tensor:
        """The layer for a few sequences."""
        mixed = self.attention.mix(self._before(x), key_mask, global_mask=global_mask, rotation=rotation)[0]
        return self._after_in_slices(x, mixed, key_mask, tokens)

    def _after_in_slices(self, x: Tensor, mixed: Tensor, key_mask: Tensor | None, tokens: int) -> Tensor:
        """The layer after attention, in slices that overwrite the attention outputs."""
        mixed = mixed.contiguous()
        masks = repeat(None) if key_mask is None else key_mask[:, -x.shape[1] :].flatten().split(tokens)
        slices = (y.flatten(0, 1).split(tokens) for y in (x, mixed))
        for x_slice, slice_, mask in zip(*slices, masks, strict=False):
            slice_.copy_(self._after(x_slice, slice_, mask)[0])
        return mixed

    def compress(
        self,
        x: Float[Tensor, "B N d"],
        old: Float[Tensor, "B n d"],
        mask: Bool[Tensor, "B n"] | None,
        query_mask: Bool[Tensor, "B N"] | None,
    ) -> tuple[Float[Tensor, "B m d"], Bool[Tensor, "B m"] | None, Float[Tensor, ""] | None]:
        """See `SelfAttention.compress`; `x` and `old` are inputs of the layer."""
        norm = partial(constant, self.attention_norm) if self.pre_norm else nn.Identity()
        return self.attention.compress(x, old, mask, query_mask, norm)

    def _before(self, x: Tensor) -> Tensor:
        return self.attention_norm(x) if self.pre_norm else x

    def _after(self, x: Tensor, mixed: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The layer after attention, and in training the loss of a feed-forward block that has one."""
        dropout = self.dropout if self.training else _as_it_is  # a module call costs much for a single token
        x = x + dropout(self.attention.output(mixed))
        if self.pre_norm:
            added, loss = feed(self.feed_forward, self.feed_forward_norm(x), mask)
            return x + dropout(added), loss
        x = self.attention_norm(x)
        added, loss = feed(self.feed_forward, x, mask)
        return self.feed_forward_norm(x + dropout(added)), loss


def _as_it_is(x: Tensor) -> Tensor:
    return x


def _split(rotation: Rotation, rows: int) -> Iterator[Rotation]:
    """The angles of `rows` sequences at a time."""
    return map(Rotation._make, zip(*(part.split(rows) for part in rotation), strict=True))


class BlockLayer(Layer):
    """A layer of its own kind, see `greenformers.blocks`."""

    reversible = False

    def __init__(self, config: GreenformerConfig, layer: int, *, causal: bool = False, decoder: bool = False) -> None:
        super().__init__()
        size = size_of(config, layer, causal=causal, decoder=decoder)
        self.block = blocks.build(config.block, size, **config.block_options or {})
        self.needs_final_norm = self.block.needs_final_norm

    def forward(
        self,
        x: Float[Tensor, "B N d"],
        mask: Bool[Tensor, "B P"] | None,
        memory: Float[Tensor, "B S d"] | None = None,
        *,
        past_key_values: Cache | None = None,
        **encoded: Tensor | None,
    ) -> tuple[Float[Tensor, "B N d"], Float[Tensor, "B S d"] | None]:
        """See `Block.forward`; on top of a cache the last N of P positions."""
        past = {} if past_key_values is None else {"past": Past(past_key_values)}
        output: tuple[Tensor, Tensor | None] = self.block(x, mask, memory, **past, **encoded)
        return output


def layer_of(config: GreenformerConfig, layer: int, *, causal: bool = False) -> EncoderLayer | BlockLayer:
    """A layer of a single stack, of the kind in the slot `block`."""
    kind = EncoderLayer if config.block == "standard" else BlockLayer
    return kind(config, layer, causal=causal)


def size_of(config: GreenformerConfig, layer: int, *, causal: bool = False, decoder: bool = False) -> blocks.Size:
    """The sizes of the network that a block is built with.

    Args:
        config: Sizes and slots of the network.
        layer: Index of the layer in its stack, from 0.
        causal: Whether position i may depend only on positions up to i.
        decoder: Whether the stack is the decoder of an encoder-decoder.
    """
    counted = layer + config.num_hidden_layers * decoder
    return blocks.Size(
        config.hidden_size,
        config.num_attention_heads,
        config.intermediate_size,
        config.max_position_embeddings,
        causal=causal,
        layer=layer,
        layers=(config.decoder_layers or 0) if decoder else config.num_hidden_layers,
        dropout=config.hidden_dropout_prob,
        eps=config.layer_norm_eps,
        ranks={name: config.rank_of(counted, name) for name in ("q", "k", "v", "output", "up", "gate", "down")},
        feed_forward=partial(feed_forward_of, config, counted, causal=causal),
        attention=partial(_attention_of, config, layer, causal=causal, decoder=decoder),
        cross_attention=partial(CrossAttention, config, layer) if decoder else None,
        norm=partial(norm_of, config),
        bias=config.resolved("bias", causal=causal),
    )


def _attention_of(
    config: GreenformerConfig, layer: int, width: int, heads: int, *, causal: bool, decoder: bool
) -> SelfAttention:
    """Self-attention of a block, of its own width and number of heads.

    Raises:
        ValueError: They do not fit each other, or the mechanism has a loss of its own, which a block cannot return.
    """
    if width % heads:
        raise ValueError(f"heads of a block's attention must divide its width {width}, got {heads}")
    own, key_heads = copy.copy(config), config.num_key_value_heads
    if key_heads is not None and key_heads * heads % config.num_attention_heads:
        raise ValueError(
            f"num_key_value_heads of {config.num_attention_heads} must be as many of {heads} heads, got {key_heads}"
        )
    own.hidden_size, own.num_attention_heads = width, heads
    own.num_key_value_heads = None if key_heads is None else key_heads * heads // config.num_attention_heads
    attention = SelfAttention(own, layer, causal=causal, decoder=decoder)
    if attention.mechanism.has_loss:
        name = type(attention.mechanism).__name__
        raise ValueError(f"attention must have no loss of its own in a block, {name} has one")
    return attention


def places_of(layers: Iterable[nn.Module]) -> tuple[list[SelfAttention | blocks.Convolution], list[CrossAttention]]:
    """What of a decoder's layers has a place in the cache of the sequence, and in that of the encoder output."""
    parts = [part for layer in layers for part in layer.modules()]
    own = [part for part in parts if isinstance(part, SelfAttention | blocks.Convolution)]
    return own, [part for part in parts if isinstance(part, CrossAttention)]


def number(layers: Iterable[nn.Module]) -> None:
    """Number the places of a decoder's layers in its cache."""
    for parts in places_of(layers):
        for place, part in enumerate(parts):
            part.place = place


def feed_forward_of(
    config: GreenformerConfig,
    layer: int,
    *,
    causal: bool = False,
    width: int | None = None,
    hidden: int | None = None,
    activation: str | None = None,
) -> FeedForward:
    """The feed-forward block of one layer, of the kind in its slot; a decoder's layers count on from the encoder's.

    Args:
        config: Sizes and slots of the network.
        layer: Index of the layer.
        causal: Whether the stack is causal.
        width: Width of its input and output; None: d.
        hidden: Its inner width; None: f.
        activation: Name of the activation where the configuration does not set one; None: that of its kind.

    Raises:
        ValueError: It cannot do what is asked for, or an option is out of range.
    """
    name = config.feed_forward_names(causal=causal)[layer]
    size = Size(
        width or config.hidden_size,
        hidden or config.intermediate_size,
        lambda: ACT2FN[config.hidden_act or activation or config.activation_of(name)],
        layer=layer,
        layers=config.num_hidden_layers + (config.decoder_layers or 0),
        ranks={name: config.rank_of(layer, name) for name in ("up", "gate", "down")},
        bias=config.resolved("bias", causal=causal),
        causal=causal,
        max_len=config.max_position_embeddings,
    )
    options = config.per_layer("feed_forward_options")[layer] or {}
    return build(name, size, **options)


def feed(
    block: FeedForward, x: Tensor, mask: Tensor | None, choice: dict[str, Tensor] | None = None
) -> tuple[Tensor, Tensor | None]:
    """The output of a feed-forward block, and in training the loss of a block that has one.

    Args:
        block: The feed-forward block.
        x: The sequence (..., N, d).
        mask: True = keep (..., M); its last N columns are those of the sequence.
        choice: For blocks that choose, the choice of an earlier call on the same sequence, or an empty dictionary.
    """
    mask = None if mask is None else mask[..., -x.shape[-2] :]
    further = {"choice": choice} if choice is not None and block.chooses else {}
    if block.has_loss and block.training:
        return block.forward_with_loss(x, mask, **further)
    return block(x, mask, **further), None
