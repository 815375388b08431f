"""The encoder-decoder. Vaswani 2017, arXiv:1706.03762, 3.1; with LEDs the Low-Rank Transformer (Winata 2020)."""

from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.cache_utils import EncoderDecoderCache
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils.generic import can_return_tuple

from greenformers.attention._aligned import is_traced
from greenformers.feed_forward import FeedForward
from greenformers.model.config import GreenformerConfig
from greenformers.model.decoder import GreenformerDecoder
from greenformers.model.encoder import GreenformerModel, GreenformerPreTrainedModel
from greenformers.model.loss import (
    IGNORED,
    Scoring,
    asked_for,
    exit_loss,
    narrow,
    token_loss,
    up_to_last_label,
    with_auxiliary,
)


class EncoderDecoder(Scoring, GreenformerPreTrainedModel, GenerationMixin):
    """An encoder and a decoder, the scores of tokens and their loss.

    Args:
        config: Configuration with `decoder_layers`, `vocab_size`, `pad_token_id` and `decoder_start_token_id`.
        encoder: Class of the encoder.

    Raises:
        ValueError: One of these entries is None.
    """

    def __init__(self, config: GreenformerConfig, encoder: type[GreenformerModel]) -> None:
        super().__init__(config)
        for name in ("decoder_layers", "vocab_size", "pad_token_id", "decoder_start_token_id"):
            if getattr(config, name) is None:
                raise ValueError(f"an encoder-decoder needs {name}, got None")
        self.encoder = encoder(config)
        self.decoder = GreenformerDecoder(config)
        if not self.decoder.keeps_cache and self.generation_config is not None:
            self.generation_config.use_cache = False  # its layers read the whole sequence at each step
        self.narrow = narrow(config)
        self.score = nn.Linear(config.embedding_size or config.hidden_size, config.vocab_size or 0, bias=False)

    def prepare_decoder_input_ids_from_labels(self, labels: Int[Tensor, "B N"]) -> Int[Tensor, "B N"]:
        """Teacher forcing: labels shifted by one position behind the start token, with padding in place of -100."""
        start, padding = cast(int, self.config.decoder_start_token_id), cast(int, self.config.pad_token_id)
        shifted = torch.cat([labels.new_full((labels.shape[0], 1), start), labels[:, :-1]], 1)
        return shifted.masked_fill(shifted == IGNORED, padding)

    @property
    def _counts_positions(self) -> bool:
        """Whether padding behind the labels would count: in a loss of the decoder, or in how deep it goes."""
        blocks = (module for module in self.decoder.layers.modules() if isinstance(module, FeedForward))
        return self.decoder.depth is not None or any(block.has_loss for block in blocks)

    def scores(self, x: Float[Tensor, "*B d"]) -> Float[Tensor, "*B V"]:
        """Scores of tokens, of states behind the last norm of the decoder."""
        logits: Tensor = self.score(self.narrow(x))
        return logits

    def decode(
        self,
        encoder_outputs: BaseModelOutput | tuple[Float[Tensor, "B M d"], ...],
        encoder_mask: Tensor | None,
        decoder_input_ids: Tensor | None,
        decoder_attention_mask: Tensor | None,
        labels: Tensor | None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """The output of the decoder and its head; arguments as in `GreenformerForSeq2SeqLM.forward`.

        Raises:
            ValueError: Neither `decoder_input_ids` nor `labels` are given.
        """
        if decoder_input_ids is None and kwargs.get("inputs_embeds") is None:
            if labels is None:
                raise ValueError("decoder_input_ids or labels must be given, got neither")
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        unmasked = decoder_attention_mask is None and kwargs.get("past_key_values") is None
        if labels is not None and unmasked and self._counts_positions:
            decoder_attention_mask = _of_labels(labels)
        encoder_output = encoder_outputs[0]
        kwargs["score"] = self.scores
        out = self.decoder(
            decoder_input_ids, decoder_attention_mask, encoder_output, encoder_mask, return_dict=True, **kwargs
        )
        loss = exit_loss(self.decoder.depth, out, labels, self.scores, num_items_in_batch)
        x, labels = asked_for(out.last_hidden_state, labels, self.config)
        logits = self.scores(x)
        if loss is None and labels is not None:
            loss = token_loss(logits, labels, num_items_in_batch)
        for part in (encoder_outputs, out):
            loss = with_auxiliary(loss, getattr(part, "auxiliary_loss", None), labels, num_items_in_batch)
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=out.past_key_values,
            decoder_hidden_states=out.hidden_states,
            decoder_attentions=out.attentions,
            cross_attentions=out.cross_attentions,
            encoder_last_hidden_state=encoder_output,
            encoder_hidden_states=getattr(encoder_outputs, "hidden_states", None),
            encoder_attentions=getattr(encoder_outputs, "attentions", None),
        )


def _of_labels(labels: Tensor) -> Tensor | None:
    """Mask of the positions up to the last label of each row; None where that is all."""
    mask = up_to_last_label(labels)
    return None if not is_traced(mask) and bool(mask.all()) else mask


SOURCE = ("position_ids", "inputs_embeds")
"""Further arguments of an encoder-decoder that are of the source alone."""


class GreenformerForSeq2SeqLM(EncoderDecoder):
    """Encoder and decoder over one vocabulary; both embeddings and the scores share one matrix."""

    _tied_weights_keys = {  # noqa: RUF012 - transformers' own form
        "decoder.embedding.word.weight": "encoder.embedding.word.weight",
        "score.weight": "encoder.embedding.word.weight",
    }

    def __init__(self, config: GreenformerConfig) -> None:
        super().__init__(config, GreenformerModel)
        self.post_init()

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resize both embeddings and the scores, as of transformers, whether they are tied or not."""
        words: nn.Embedding = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        if not self.config.tie_word_embeddings:
            self.decoder.resize_token_embeddings(len(words.weight), mean_resizing=mean_resizing)
        return words

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "B M"] | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Int[Tensor, "B N"] | None = None,
        decoder_attention_mask: Tensor | None = None,
        labels: Int[Tensor, "B N"] | None = None,
        encoder_outputs: BaseModelOutput | tuple[Float[Tensor, "B M d"], ...] | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        token_type_ids: Int[Tensor, "B M"] | None = None,
        global_attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Score the token that follows each of the decoder's positions.

        Args:
            input_ids: Tokens of the source (B, M).
            attention_mask: 1 = keep (B, M).
            decoder_input_ids: Tokens of the target so far (B, N); by default the labels, shifted by one position.
            decoder_attention_mask: 1 = keep (B, P), P counting the positions in the cache too.
            labels: The right tokens (B, N), -100 at positions without a label.
            encoder_outputs: Encoder output of an earlier call, in place of `input_ids`.
            past_key_values: Keys and values of earlier positions of the target, and of the source.
            use_cache: Whether keys and values are returned for later positions.
            num_items_in_batch: Divisor of the loss; by default the number of labels of this batch.
            token_type_ids: Types of the tokens of the source (B, M).
            global_attention_mask: 1 = global (B, M), of the source, for mechanisms that take it.
            **kwargs: Further arguments: those of `SOURCE` of the encoder, those whose names begin with "decoder_" of
                the decoder, without that beginning, and others of both.

        Returns:
            loss in nats per token, if labels are given, and logits (B, N, vocabulary); with `sparse_prediction` and
            labels, the logits (n, vocabulary) of the n positions that have a label.

        Raises:
            ValueError: Neither `decoder_input_ids` nor `labels` are given.
        """
        source = {name: kwargs.pop(name) for name in SOURCE if name in kwargs}
        source |= {"token_type_ids": token_type_ids, "global_attention_mask": global_attention_mask}
        target = {name: kwargs.pop(name) for name in list(kwargs) if name.startswith("decoder_")}
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask, return_dict=True, **source, **kwargs)
        kwargs |= {name.removeprefix("decoder_"): value for name, value in target.items()}
        kwargs |= {"past_key_values": past_key_values, "use_cache": use_cache}
        return self.decode(
            encoder_outputs, attention_mask, decoder_input_ids, decoder_attention_mask, labels, num_items_in_batch,
            **kwargs,
        )  # fmt: skip
