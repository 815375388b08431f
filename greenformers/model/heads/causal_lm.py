"""Causal language modelling: every position scores the token that follows it."""

from typing import Any, cast

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.generic import can_return_tuple

from greenformers.model.config import GreenformerConfig
from greenformers.model.decoder import GreenformerDecoder
from greenformers.model.encoder import GreenformerPreTrainedModel
from greenformers.model.loss import Scoring, asked_for, exit_loss, narrow, token_loss, with_auxiliary
from greenformers.model.memory import SegmentMemory
from greenformers.model.outputs import CausalLMOutput


class GreenformerForCausalLM(Scoring, GreenformerPreTrainedModel, GenerationMixin):
    """Decoder that continues a text; the output embedding is the input embedding."""

    base_model_prefix = "decoder"
    stack_is_causal = True
    _tied_weights_keys = {"score.weight": "decoder.embedding.word.weight"}  # noqa: RUF012 - transformers' own form

    def __init__(self, config: GreenformerConfig) -> None:
        super().__init__(config)
        if config.is_encoder_decoder:
            raise ValueError(f"a causal language model has no encoder: no decoder_layers, got {config.decoder_layers}")
        self.decoder = GreenformerDecoder(config)
        self.narrow = narrow(config)
        self.score = nn.Linear(config.embedding_size or config.hidden_size, config.vocab_size or 0, bias=False)
        self.post_init()
        if not self.decoder.keeps_cache and self.generation_config is not None:
            self.generation_config.use_cache = False  # its layers read the whole sequence at each step

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "B N"] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        labels: Int[Tensor, "B N"] | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        num_items_in_batch: Tensor | int | None = None,
        memory: SegmentMemory | None = None,
        token_type_ids: Int[Tensor, "B N"] | None = None,
        inputs_embeds: Float[Tensor, "B N e"] | None = None,
        **kwargs: Any,
    ) -> CausalLMOutput:
        """Score the token that follows each position.

        Args:
            input_ids: Tokens (B, N).
            attention_mask: 1 = keep (B, P), P counting the positions in the cache too.
            past_key_values: Keys and values of the earlier positions.
            labels: The tokens themselves (B, N), which are shifted here; -100 at positions without a label.
            use_cache: Whether keys and values are returned for later positions.
            logits_to_keep: Number of last positions to score; 0: all.
            num_items_in_batch: Divisor of the loss; by default the number of labels of this batch.
            memory: Segment memory, see `SegmentMemory`.
            token_type_ids: Passed to the decoder, as all arguments that follow.
            inputs_embeds: Embeddings of the tokens, in place of `input_ids`.
            **kwargs: Further arguments of the decoder, such as `position_ids`; and `shift_labels`, the following tokens
                in place of `labels`, for texts in parts. (The Trainer would require an argument of that name.)

        Returns:
            loss in nats per token, if labels are given, and logits (B, N, vocabulary); with `sparse_prediction` and
            labels, the logits (n, vocabulary) of the n positions that are followed by a label. Where a segment
            memory was given and no cache, that for the next segment.

        Raises:
            ValueError: Both labels and `logits_to_keep` are given.
        """
        given: dict[str, Any] = {"past_key_values": past_key_values, "use_cache": use_cache, "memory": memory}
        given |= {"token_type_ids": token_type_ids, "inputs_embeds": inputs_embeds}
        shift_labels = kwargs.pop("shift_labels", None)
        if (labels is not None or shift_labels is not None) and logits_to_keep:
            raise ValueError(f"logits_to_keep must be 0 where labels are given, got {logits_to_keep}")
        given |= {"logits_to_keep": logits_to_keep, "score": self.scores}
        out = self.decoder(input_ids, attention_mask, return_dict=True, **given, **kwargs)
        return self.head(out, labels, num_items_in_batch, logits_to_keep, shift_labels)

    def scores(self, x: Float[Tensor, "*B d"]) -> Float[Tensor, "*B V"]:
        """Scores of tokens, of states behind the last norm."""
        logits: Tensor = self.score(self.narrow(x))
        return logits

    def head(
        self,
        out: BaseModelOutputWithPast,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        logits_to_keep: int = 0,
        shift_labels: Tensor | None = None,
    ) -> CausalLMOutput:
        """The head on a decoder output; arguments as in `forward`."""
        x = cast(Tensor, out.last_hidden_state)[:, -logits_to_keep:]
        following = shift_labels
        if following is None and labels is not None:
            following = F.pad(labels, (0, 1), value=-100)[:, 1:]
        loss = exit_loss(self.decoder.depth, out, following, self.scores, num_items_in_batch)
        x, following = asked_for(x, following, self.config)
        logits = self.scores(x)
        if loss is None and following is not None:
            loss = token_loss(logits, following, num_items_in_batch)
        loss = with_auxiliary(loss, getattr(out, "auxiliary_loss", None), following, num_items_in_batch)
        return CausalLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=out.past_key_values,
            hidden_states=out.hidden_states,
            attentions=out.attentions,
            memory=getattr(out, "memory", None),
        )
