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
        global_attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Score every label.

        Args:
            input_ids: Tokens (B, N).
            attention_mask: 1 = keep.
            input_values: Values (B, n, C), in place of tokens.
            labels: Labels as in `greenformers.model.classification.classification_loss`, one row a sequence.
            num_items_in_batch: Divisor of the loss; by default the number of labels of this batch.
            token_type_ids: Passed to the encoder, as all arguments that follow.
            position_ids: Positions of the tokens, from 0.
            inputs_embeds: Embeddings of the tokens, in place of `input_ids`.
            global_attention_mask: 1 = global, for mechanisms that take it.
            **kwargs: Further arguments of the encoder.

        Returns:
            loss (cross-entropy in nats, or squared error for numbers), if labels are given, and logits (B, labels).
        """
        given = {"token_type_ids": token_type_ids, "position_ids": position_ids, "inputs_embeds": inputs_embeds}
        given["global_attention_mask"] = global_attention_mask
        out = self.encoder(input_ids, attention_mask, input_values, return_dict=True, **given, **kwargs)
        return self.head(out, labels, num_items_in_batch)
