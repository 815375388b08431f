"""Layers of a decoder that attends an encoder. Vaswani 2017, 3.1; Winata 2020."""

from collections.abc import Callable

from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers.cache_utils import EncoderDecoderCache

from greenformers.depth import Running
from greenformers.model.attention import CrossAttention, SelfAttention
from greenformers.model.block import BlockLayer, Layer, feed, feed_forward_of
from greenformers.model.config import GreenformerConfig
from greenformers.model.norm import norm_of
from greenformers.position import Rotation

Block = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""Function from the input of a block of a layer to what is added to the residual stream, and a loss or None."""


class DecoderLayer(Layer):
    """Causal self-attention, attention to the encoder, feed-forward; each with its residual and layer norm."""

    def __init__(self, config: GreenformerConfig, layer: int) -> None:
        super().__init__()
        self.attention = SelfAttention(config, layer, causal=True, decoder=True)
        if self.attention.mechanism.has_loss:
            name = config.per_layer("decoder_attention")[layer]
            raise ValueError(f"decoder_attention must have no loss of its own beside an encoder, {name} has one")
        self.cross_attention = CrossAttention(config, layer)
        self.feed_forward = feed_forward_of(config, layer + config.num_hidden_layers, causal=True)
        self.attention_norm, self.cross_attention_norm = norm_of(config), norm_of(config)
        self.feed_forward_norm = norm_of(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.pre_norm = self.needs_final_norm = config.resolved("residual") == "pre"

    def forward(
        self,
        x: Float[Tensor, "B N d"],
        encoder_output: Float[Tensor, "B M d"],
        key_mask: Bool[Tensor, "B P"] | None = None,
        encoder_mask: Bool[Tensor, "B M"] | None = None,
        *,
        past_key_values: EncoderDecoderCache | None = None,
        rotation: Rotation | None = None,
        pairs: Tensor | None = None,
        attentions: tuple[list[Tensor], list[Tensor]] | tuple[None, None] = (None, None),
        running: Running | None = None,
    ) -> Float[Tensor, "B N d"] | tuple[Float[Tensor, "B N d"], Float[Tensor, ""]]:
        """One layer (B, N, d) over the last N of P positions; `attentions` are lists for self- and cross-attention.

        With `running`, outputs (b, S, d) of these positions only. In training it also returns the loss of a
        feed-forward block that has one.
        """
        own_cache = None if past_key_values is None else past_key_values.self_attention_cache
        attention, cross = self.attention, self.cross_attention
        if running is not None and attentions[0] is None and cross.mechanism.continues:
            encoded = encoder_output, encoder_mask
            return self._of_some(x, running, encoded, key_mask, past_key_values, rotation, pairs)
        x, _ = self._residual(
            x,
            self.attention_norm,
            lambda y: (
                attention.output(
                    attention.mix(y, key_mask, own_cache, rotation=rotation, pairs=pairs, attentions=attentions[0])[0]
                ),
                None,
            ),
        )
        x, _ = self._residual(
            x,
            self.cross_attention_norm,
            lambda y: (
                cross.output(
                    cross.mix(y, encoder_output, encoder_mask, past_key_values, attentions[1], query_mask=key_mask)
                ),
                None,
            ),
        )
        x, loss = self._residual(x, self.feed_forward_norm, lambda y: feed(self.feed_forward, y, key_mask))
        if running is not None:  # attention weights are those of all positions
            x = running.take(x)
        return x if loss is None else (x, loss)

    def _of_some(
        self,
        x: Tensor,
        running: Running,
        encoded: tuple[Tensor, Tensor | None],
        key_mask: Tensor | None,
        cache: EncoderDecoderCache | None,
        rotation: Rotation | None,
        pairs: Tensor | None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The layer at some positions; a mechanism that cannot take queries by themselves computes all of them."""
        attention, cross = self.attention, self.cross_attention
        own_cache = None if cache is None else cache.self_attention_cache
        y = self.attention_norm(x) if self.pre_norm else x
        if pairs is None and attention.picks_from(own_cache):
            mixed = attention.mix_some(y, running, key_mask, own_cache, rotation)
        else:
            mixed = running.take(attention.mix(y, key_mask, own_cache, rotation=rotation, pairs=pairs)[0])
        sources = running.rows // (len(x) // len(encoded[0]))
        x = self._joined(running.take(x), attention.output(mixed), self.attention_norm)
        if running.is_empty:
            return x
        x, _ = self._residual(
            x, self.cross_attention_norm, lambda y: (cross.output(cross.mix(y, *encoded, cache, sources=sources)), None)
        )
        x, loss = self._residual(x, self.feed_forward_norm, lambda y: feed(self.feed_forward, y, running.mask))
        return x if loss is None else (x, loss)

    def _residual(self, x: Tensor, norm: nn.Module, block: Block) -> tuple[Tensor, Tensor | None]:
        added, loss = block(norm(x) if self.pre_norm else x)
        return self._joined(x, added, norm), loss

    def _joined(self, x: Tensor, added: Tensor, norm: nn.Module) -> Tensor:
        x = x + self.dropout(added)
        return x if self.pre_norm else norm(x)


class BlockDecoderLayer(BlockLayer):
    """A layer of its own kind that attends the encoder output too, see `greenformers.blocks`."""

    def __init__(self, config: GreenformerConfig, layer: int) -> None:
        super().__init__(config, layer, causal=True, decoder=True)

    def forward(  # type: ignore[override]
        self,
        x: Float[Tensor, "B N d"],
        encoder_output: Float[Tensor, "b M d"],
        key_mask: Bool[Tensor, "B P"] | None = None,
        encoder_mask: Bool[Tensor, "b M"] | None = None,
        *,
        past_key_values: EncoderDecoderCache | None = None,
        rotation: Rotation | None = None,
        pairs: Tensor | None = None,
        attentions: tuple[list[Tensor], list[Tensor]] | tuple[None, None] = (None, None),
    ) -> Float[Tensor, "B N d"]:
        """See `DecoderLayer.forward`.

        Raises:
            ValueError: A mask of queries and keys is given, or attention weights are asked for.
        """
        if pairs is not None or rotation is not None:
            raise ValueError("a mask of queries and keys, and rotary positions, are for layers of attention")
        if attentions[0] is not None:
            raise ValueError("output_attentions is for layers of attention one after the other: it must be False here")
        encoded = {"encoder_output": encoder_output, "encoder_mask": encoder_mask}
        return super().forward(x, key_mask, past_key_values=past_key_values, **encoded)[0]


def decoder_layer_of(config: GreenformerConfig, layer: int) -> DecoderLayer | BlockDecoderLayer:
    """A layer of the decoder of an encoder-decoder: of the kind in the slot `block`, if that attends an encoder."""
    return (BlockDecoderLayer if config.crosses_by_block else DecoderLayer)(config, layer)
