"""Multiple choice: which of several texts is the right one. Devlin 2018, arXiv:1810.04805, 4.4."""

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling, MultipleChoiceModelOutput
from transformers.utils.generic import can_return_tuple

from greenformers.model.config import GreenformerConfig
from greenformers.model.encoder import GreenformerModel, GreenformerPreTrainedModel
from greenformers.model.heads._texts import one_by_one, texts_an_example
from greenformers.model.loss import token_loss, with_auxiliary


class GreenformerForMultipleChoice(GreenformerPreTrainedModel):
    """Encoder that scores every choice by itself; the right one is to get the highest score."""

    def __init__(self, config: GreenformerConfig) -> None:
        super().__init__(config)
        self.encoder = GreenformerModel(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.score = nn.Linear(config.hidden_size, 1)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "B choices N"] | None = None,
        attention_mask: Tensor | None = None,
        labels: Int[Tensor, " B"] | None = None,
        num_items_in_batch: Tensor | int | None = None,
        token_type_ids: Int[Tensor, "B choices N"] | None = None,
        position_ids: Int[Tensor, "B choices N"] | None = None,
        inputs_embeds: Float[Tensor, "B choices N e"] | None = None,
        global_attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> MultipleChoiceModelOutput:
        """Score every choice.

        Args:
            input_ids: Tokens (B, choices, N).
            attention_mask: 1 = keep (B, choices, N).
            labels: Index of the right choice (B,), from 0.
            num_items_in_batch: Divisor of the loss; by default the number of labels of this batch.
            token_type_ids: Passed to the encoder, choice by choice, as all arguments that follow.
            position_ids: Positions of the tokens, from 0.
            inputs_embeds: Embeddings of the tokens, in place of `input_ids`.
            global_attention_mask: Mask of global positions, for mechanisms that take it.
            **kwargs: Further arguments of the encoder.

        Returns:
            loss in nats per example, if labels are given, and logits (B, choices).

        Raises:
            ValueError: The input is not (B, choices, N).
        """
        choices = texts_an_example(input_ids, inputs_embeds)
        if choices is None:
            raise ValueError("input_ids must be (B, choices, N), got two dimensions")
        given = {
            "input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids,
            "position_ids": position_ids, "inputs_embeds": inputs_embeds,
            "global_attention_mask": global_attention_mask,
        }  # fmt: skip
        out = self.encoder(return_dict=True, **one_by_one(given), **kwargs)
        return self.head(out, choices, labels, num_items_in_batch)

    def head(
        self,
        out: BaseModelOutputWithPooling,
        choices: int,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> MultipleChoiceModelOutput:
        """The head on an encoder output, with the number of choices per example; arguments as in `forward`."""
        logits = self.score(self.dropout(out.pooler_output)).view(-1, choices)
        loss = None if labels is None else token_loss(logits, labels, num_items_in_batch)
        loss = with_auxiliary(loss, getattr(out, "auxiliary_loss", None), labels, num_items_in_batch)
        return MultipleChoiceModelOutput(
            loss=loss, logits=logits, hidden_states=out.hidden_states, attentions=out.attentions
        )
