"""Classification of tokens, and the discriminator of replaced token detection."""

from typing import Any, cast

from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput, TokenClassifierOutput
from transformers.utils.generic import can_return_tuple

from greenformers.model.classification import classification_loss
from greenformers.model.config import GreenformerConfig
from greenformers.model.encoder import GreenformerModel, GreenformerPreTrainedModel
from greenformers.model.loss import IGNORED, with_auxiliary


class GreenformerForTokenClassification(GreenformerPreTrainedModel):
    """Encoder that labels every token; with two labels also the discriminator of replaced token detection."""

    def __init__(self, config: GreenformerConfig) -> None:
        super().__init__(config)
        self.encoder = GreenformerModel(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, cast(int, config.num_labels))
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "B N"] | None = None,
        attention_mask: Tensor | None = None,
        input_values: Float[Tensor, "B n C"] | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        token_type_ids: Int[Tensor, "B N"] | None = None,
        position_ids: Int[Tensor, "b N"] | None = None,
        inputs_embeds: Float[Tensor, "B N e"] | None = None,
        global_attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> TokenClassifierOutput:
        """Score every label at every position.

        Args:
            input_ids: Tokens (B, N).
            attention_mask: 1 = keep.
            input_values: Values (B, n, C), in place of tokens; the [CLS] in front counts in N.
            labels: Labels as in `greenformers.model.classification.classification_loss`; -100 at positions without one.
            num_items_in_batch: Divisor of the loss; by default the number of labels of this batch.
            token_type_ids: Passed to the encoder, as all arguments that follow.
            position_ids: Positions of the tokens, from 0.
            inputs_embeds: Embeddings of the tokens, in place of `input_ids`.
            global_attention_mask: 1 = global, for mechanisms that take it.
            **kwargs: Further arguments of the encoder.

        Returns:
            loss a label, if labels are given, and logits (B, N, labels).
        """
        given = {"token_type_ids": token_type_ids, "position_ids": position_ids, "inputs_embeds": inputs_embeds}
        given["global_attention_mask"] = global_attention_mask
        out = self.encoder(input_ids, attention_mask, input_values, return_dict=True, **given, **kwargs)
        return self.head(out, labels, num_items_in_batch)

    def head(
        self, out: BaseModelOutput, labels: Tensor | None = None, num_items_in_batch: Tensor | int | None = None
    ) -> TokenClassifierOutput:
        """The head on an encoder output; arguments as in `forward`."""
        logits = self.classifier(self.dropout(out.last_hidden_state))
        loss = None
        if labels is not None:
            loss = classification_loss(logits, labels, self.config, num_items_in_batch, ignored=IGNORED)
        loss = with_auxiliary(loss, getattr(out, "auxiliary_loss", None), labels, num_items_in_batch)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=out.hidden_states, attentions=out.attentions
        )
