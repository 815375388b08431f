"""Classification of recordings, given as frames of a spectrogram or as any other features."""

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from greenformers.model.config import GreenformerConfig
from greenformers.model.heads.classifier import Classifier


class GreenformerForAudioClassification(Classifier):
    """Encoder of a learned [CLS] and frames, which labels the recording.

    Raises:
        ValueError: The configuration has no `input_features`, the number of features of a frame.
    """

    main_input_name = "input_values"
    input_modalities = "audio"

    def __init__(self, config: GreenformerConfig) -> None:
        if config.input_features is None:
            raise ValueError("classification of recordings needs input_features, got None")
        super().__init__(config)

    @can_return_tuple
    def forward(
        self,
        input_values: Float[Tensor, "B T C"],
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        position_ids: Int[Tensor, "b N"] | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Score every label.

        Args:
            input_values: Frames (B, T, features).
            attention_mask: 1 = keep (B, T).
            labels: Labels as in `greenformers.model.classification.classification_loss`, one row a recording.
            num_items_in_batch: Divisor of the loss; by default the number of labels of this batch.
            position_ids: Positions of the [CLS] and the frames behind it (B or 1, T + 1).
            **kwargs: Further arguments of the encoder.

        Returns:
            loss (cross-entropy in nats, or squared error for numbers), if labels are given, and logits (B, labels).

        Raises:
            ValueError: The frames do not have `input_features` numbers.
        """
        features = self.config.input_features
        if input_values.dim() != 3 or input_values.shape[2] != features:
            raise ValueError(f"input_values must be (B, T, {features}), got {tuple(input_values.shape)}")
        out = self.encoder(
            attention_mask=attention_mask, input_values=input_values, position_ids=position_ids, return_dict=True,
            **kwargs,
        )  # fmt: skip
        return self.head(out, labels, num_items_in_batch)
