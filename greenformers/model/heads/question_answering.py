"""Extractive question answering: where in a text the answer begins and ends. Devlin 2018, arXiv:1810.04805, 4.2."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput, QuestionAnsweringModelOutput
from transformers.utils.generic import can_return_tuple

from greenformers.model.config import GreenformerConfig
from greenformers.model.encoder import GreenformerModel, GreenformerPreTrainedModel
from greenformers.model.loss import IGNORED, token_loss, with_auxiliary


class GreenformerForQuestionAnswering(GreenformerPreTrainedModel):
    """Encoder that scores every position as the first and as the last one of the answer."""

    def __init__(self, config: GreenformerConfig) -> None:
        super().__init__(config)
        self.encoder = GreenformerModel(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)  # the name by which PEFT trains it whole
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "B N"] | None = None,
        attention_mask: Tensor | None = None,
        start_positions: Int[Tensor, " B"] | None = None,
        end_positions: Int[Tensor, " B"] | None = None,
        num_items_in_batch: Tensor | int | None = None,
        token_type_ids: Int[Tensor, "B N"] | None = None,
        position_ids: Int[Tensor, "b N"] | None = None,
        inputs_embeds: Float[Tensor, "B N e"] | None = None,
        global_attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> QuestionAnsweringModelOutput:
        """Score the two ends of the answer.

        Args:
            input_ids: Tokens (B, N) of question and text.
            attention_mask: 1 = keep (B, N).
            start_positions: First positions of answers (B,); those outside the sequence are ignored.
            end_positions: Last positions of answers (B,), likewise.
            num_items_in_batch: Divisor of each cross-entropy; by default the number of its positions.
            token_type_ids: Passed to the encoder, as all arguments that follow.
            position_ids: Positions of the tokens, from 0.
            inputs_embeds: Embeddings of the tokens, in place of `input_ids`.
            global_attention_mask: 1 = global, for mechanisms that take it.
            **kwargs: Further arguments of the encoder.

        Returns:
            loss, the mean of the two cross-entropies in nats, if both positions are given; start_logits (B, N) and
            end_logits (B, N).

        Raises:
            ValueError: Only one of the two positions is given.
        """
        given = {"token_type_ids": token_type_ids, "position_ids": position_ids, "inputs_embeds": inputs_embeds}
        given["global_attention_mask"] = global_attention_mask
        out = self.encoder(input_ids, attention_mask, return_dict=True, **given, **kwargs)
        return self.head(out, start_positions, end_positions, num_items_in_batch, attention_mask)

    def head(
        self,
        out: BaseModelOutput,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        attention_mask: Tensor | None = None,
    ) -> QuestionAnsweringModelOutput:
        """The head on an encoder output; arguments as in `forward`."""
        start, end = self.qa_outputs(out.last_hidden_state).unbind(-1)
        if attention_mask is not None and attention_mask.dim() == 2:  # no answer lies in padding
            hidden = ~attention_mask.bool()
            start, end = (x.masked_fill(hidden, torch.finfo(x.dtype).min) for x in (start, end))
        if (start_positions is None) != (end_positions is None):
            missing = "start_positions" if start_positions is None else "end_positions"
            raise ValueError(f"start_positions and end_positions must be given together, {missing} is None")
        loss = None
        if start_positions is not None and end_positions is not None:
            first, last = (_inside(positions, start.shape[1]) for positions in (start_positions, end_positions))
            loss = (token_loss(start, first, num_items_in_batch) + token_loss(end, last, num_items_in_batch)) / 2
            loss = with_auxiliary(loss, getattr(out, "auxiliary_loss", None), first, num_items_in_batch)
        return QuestionAnsweringModelOutput(
            loss=loss, start_logits=start, end_logits=end, hidden_states=out.hidden_states, attentions=out.attentions
        )


def _inside(positions: Tensor, length: int) -> Tensor:
    """Positions (B,), flattened from (B, 1) of some collators, with -100 for those outside the sequence."""
    positions = positions.flatten()
    return positions.masked_fill((positions < 0) | (positions >= length), IGNORED)
