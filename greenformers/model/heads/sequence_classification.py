"""Classification of whole sequences, of tokens or of values."""

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from greenformers.model.heads.classifier import Classifier


class GreenformerForSequenceClassification(Classifier):
    """Encoder that labels a whole sequence; with one label, it predicts a number."""

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
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Score every label.

        Args:
            input_ids: tokens (B, N).
            attention_mask: 1 = keep.
            input_values: values (B, n, C), in place of tokens.
            labels: as `greenformers.model.classification.classification_loss` says, one row a sequence.
            num_items_in_batch: what the loss is divided by, where not by the number of labels here.
            token_type_ids: to the encoder; as all that follows.
            position_ids: of the tokens.
            inputs_embeds: vectors of the tokens, in place of them.
            **kwargs: what else the encoder takes.

        Returns:
            loss (cross-entropy in nats, or squared error for numbers), if labels are given, and logits (B, labels).
        """
        given = {"token_type_ids": token_type_ids, "position_ids": position_ids, "inputs_embeds": inputs_embeds}
        out = self.encoder(input_ids, attention_mask, input_values, return_dict=True, **given, **kwargs)
        return self.head(out, labels, num_items_in_batch)
