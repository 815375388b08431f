"""The encoder-decoder. Vaswani 2017, arXiv:1706.03762, 3.1; with LED in every map the LRT of thesis 3.1.1."""

from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.cache_utils import EncoderDecoderCache
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils.generic import can_return_tuple

from greenformers.model.config import GreenformerConfig
from greenformers.model.decoder import GreenformerDecoder
from greenformers.model.encoder import GreenformerModel, GreenformerPreTrainedModel
from greenformers.model.loss import IGNORED, Scoring, asked_for, narrow, token_loss, with_auxiliary


class EncoderDecoder(Scoring, GreenformerPreTrainedModel, GenerationMixin):
    """A decoder behind an encoder, the scores of its tokens and their loss.

    Args:
        config: needs `decoder_layers`, `vocab_size`, `pad_token_id` and `decoder_start_token_id`.
        encoder: what gives it a memory.

    Raises:
        ValueError: one of these is None.
    """

    def __init__(self, config: GreenformerConfig, encoder: type[GreenformerModel]) -> None:
        super().__init__(config)
        for name in ("decoder_layers", "vocab_size", "pad_token_id", "decoder_start_token_id"):
            if getattr(config, name) is None:
                raise ValueError(f"an encoder-decoder needs {name}, got None")
        self.encoder = encoder(config)
        self.decoder = GreenformerDecoder(config)
        self.narrow = narrow(config)
        self.score = nn.Linear(config.embedding_size or config.hidden_size, config.vocab_size or 0, bias=False)

    def prepare_decoder_input_ids_from_labels(self, labels: Int[Tensor, "B N"]) -> Int[Tensor, "B N"]:
        """Teacher forcing: the labels one place to the right, behind the start token; padding where they are -100."""
        start, padding = cast(int, self.config.decoder_start_token_id), cast(int, self.config.pad_token_id)
        moved = torch.cat([labels.new_full((labels.shape[0], 1), start), labels[:, :-1]], 1)
        return moved.masked_fill(moved == IGNORED, padding)

    def decode(
        self,
        encoder_outputs: BaseModelOutput | tuple[Float[Tensor, "B M d"], ...],
        memory_mask: Tensor | None,
        decoder_input_ids: Tensor | None,
        decoder_attention_mask: Tensor | None,
        labels: Tensor | None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """What follows the encoder; arguments as in `GreenformerForSeq2SeqLM.forward`.

        Raises:
            ValueError: neither decoder_input_ids nor labels are given.
        """
        if decoder_input_ids is None:
            if labels is None:
                raise ValueError("decoder_input_ids or labels must be given, got neither")
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        memory = encoder_outputs[0]
        out = self.decoder(decoder_input_ids, decoder_attention_mask, memory, memory_mask, return_dict=True, **kwargs)
        x, labels = asked_for(out.last_hidden_state, labels, self.config)
        logits = self.score(self.narrow(x))
        loss = None if labels is None else token_loss(logits, labels, num_items_in_batch)
        return Seq2SeqLMOutput(
            loss=with_auxiliary(loss, getattr(encoder_outputs, "auxiliary_loss", None), labels, num_items_in_batch),
            logits=logits,
            past_key_values=out.past_key_values,
            decoder_hidden_states=out.hidden_states,
            decoder_attentions=out.attentions,
            cross_attentions=out.cross_attentions,
            encoder_last_hidden_state=memory,
            encoder_hidden_states=getattr(encoder_outputs, "hidden_states", None),
            encoder_attentions=getattr(encoder_outputs, "attentions", None),
        )


class GreenformerForSeq2SeqLM(EncoderDecoder):
    """Encoder and decoder over one vocabulary; both embeddings and the scores share one matrix."""

    _tied_weights_keys = {  # noqa: RUF012 - transformers' own form
        "decoder.embedding.word.weight": "encoder.embedding.word.weight",
        "score.weight": "encoder.embedding.word.weight",
    }

    def __init__(self, config: GreenformerConfig) -> None:
        super().__init__(config, GreenformerModel)
        self.post_init()

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
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Score the token that follows each of the decoder's positions.

        Args:
            input_ids: tokens of the source (B, M).
            attention_mask: 1 = keep (B, M).
            decoder_input_ids: tokens of the target so far (B, N); by default the labels, one place to the right.
            decoder_attention_mask: 1 = keep (B, P), P counting the positions in the cache too.
            labels: the right tokens (B, N), -100 where none is asked for.
            encoder_outputs: of an earlier call, in place of `input_ids`.
            past_key_values: keys and values of the target's positions before and of the source.
            use_cache: return keys and values for the positions to come.
            num_items_in_batch: what the loss is divided by, where not by the number of labels here.
            **kwargs: to encoder and decoder.

        Returns:
            loss in nats a token, if labels are given, and logits (B, N, vocabulary); with `sparse_prediction` and
            labels, the logits (n, vocabulary) of the n positions that have a label.

        Raises:
            ValueError: neither decoder_input_ids nor labels are given.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask, return_dict=True, **kwargs)
        kwargs |= {"past_key_values": past_key_values, "use_cache": use_cache}
        return self.decode(
            encoder_outputs, attention_mask, decoder_input_ids, decoder_attention_mask, labels, num_items_in_batch,
            **kwargs,
        )  # fmt: skip
