"""Pre-training on masked tokens and on pairs of texts. Devlin 2018, arXiv:1810.04805, 3.1."""

from typing import Any, cast

from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils.generic import can_return_tuple

from greenformers.model.config import GreenformerConfig
from greenformers.model.heads.masked_lm import TokenPrediction
from greenformers.model.loss import token_loss, with_auxiliary
from greenformers.model.outputs import PreTrainingOutput


class GreenformerForPreTraining(TokenPrediction):
    """Encoder that fills in masked tokens, and tells whether the second text of a pair follows the first.

    `GreenformerForMaskedLM` loads its weights too, except those of the second task.
    """

    def __init__(self, config: GreenformerConfig) -> None:
        super().__init__(config)
        self.next_sentence = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "B N"] | None = None,
        attention_mask: Tensor | None = None,
        labels: Int[Tensor, "B N"] | None = None,
        next_sentence_label: Int[Tensor, " B"] | None = None,
        num_items_in_batch: Tensor | int | None = None,
        token_type_ids: Int[Tensor, "B N"] | None = None,
        position_ids: Int[Tensor, "b N"] | None = None,
        inputs_embeds: Float[Tensor, "B N e"] | None = None,
        global_attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> PreTrainingOutput:
        """Score every token at every position, and whether the second text follows the first.

        Args:
            input_ids: Tokens (B, N) of both texts.
            attention_mask: 1 = keep (B, N).
            labels: The right tokens (B, N), -100 at positions without a label.
            next_sentence_label: 0 where the second text follows the first, 1 where it does not (B,).
            num_items_in_batch: Number of masked tokens of the whole batch, where this is a part of it: the divisor of
                the loss of tokens. The mean loss of pairs then counts by the share of these tokens in this part.
            token_type_ids: Passed to the encoder, as all arguments that follow. 0 for the first text, 1 for the second.
            position_ids: Positions of the tokens, from 0.
            inputs_embeds: Embeddings of the tokens, in place of `input_ids`.
            global_attention_mask: 1 = global, for mechanisms that take it.
            **kwargs: Further arguments of the encoder.

        Returns:
            loss in nats, the sum of the two tasks whose labels are given; prediction_logits (B, N, vocabulary), with
            `sparse_prediction` and labels (n, vocabulary) of the n positions that have one; seq_relationship_logits
            (B, 2).
        """
        given = {"token_type_ids": token_type_ids, "position_ids": position_ids, "inputs_embeds": inputs_embeds}
        given["global_attention_mask"] = global_attention_mask
        out = self.encoder(input_ids, attention_mask, return_dict=True, **given, **kwargs)
        return self.head(out, labels, next_sentence_label, num_items_in_batch)

    def head(
        self,
        out: BaseModelOutputWithPooling,
        labels: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> PreTrainingOutput:
        """The head on an encoder output; arguments as in `forward`."""
        loss, logits = self.predict(cast(Tensor, out.last_hidden_state), labels, num_items_in_batch)
        related = self.next_sentence(out.pooler_output)
        if next_sentence_label is not None:
            if labels is None:
                labels = next_sentence_label
                loss = token_loss(related, labels, num_items_in_batch)
            else:
                loss = with_auxiliary(loss, token_loss(related, next_sentence_label, None), labels, num_items_in_batch)
        loss = with_auxiliary(loss, getattr(out, "auxiliary_loss", None), labels, num_items_in_batch)
        return PreTrainingOutput(
            loss=loss,
            prediction_logits=logits,
            seq_relationship_logits=related,
            hidden_states=out.hidden_states,
            attentions=out.attentions,
        )
