"""Classification of images, cut into patches: the vision transformer. Dosovitskiy 2020, arXiv:2010.11929, 3.1."""

from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from greenformers.model.config import GreenformerConfig
from greenformers.model.heads.classifier import Classifier


class GreenformerForImageClassification(Classifier):
    """Encoder of a learned [CLS] and patches, which labels the image.

    >>> sizes = {"image_size": 224, "patch_size": 16, "input_features": 3 * 16**2, "vocab_size": None}
    >>> logits = GreenformerForImageClassification(GreenformerConfig(**sizes))(pixel_values).logits  # (B, labels)

    Raises:
        ValueError: The configuration has no `image_size`.
    """

    main_input_name = "pixel_values"
    input_modalities = "image"

    def __init__(self, config: GreenformerConfig) -> None:
        if config.image_size is None:
            raise ValueError("classification of images needs image_size and patch_size, got None")
        super().__init__(config)

    @can_return_tuple
    def forward(
        self,
        pixel_values: Float[Tensor, "B C H W"],
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Score every label.

        Args:
            pixel_values: Images (B, channels, height, width).
            labels: Labels as in `greenformers.model.classification.classification_loss`, one row an image.
            num_items_in_batch: Divisor of the loss; by default the number of labels of this batch.
            **kwargs: Further arguments of the encoder, such as `position_ids` of the [CLS] and the patches.

        Returns:
            loss (cross-entropy in nats, or squared error for numbers), if labels are given, and logits (B, labels).

        Raises:
            ValueError: The images are not of the size in the configuration.
        """
        out = self.encoder(input_values=self.patches(pixel_values), return_dict=True, **kwargs)
        return self.head(out, labels, num_items_in_batch)

    def patches(self, pixel_values: Float[Tensor, "B C H W"]) -> Float[Tensor, "B n p"]:
        """Patches row by row from the upper left, each channel by channel: (B, n, channels * patch_size^2)."""
        size = (self.config.num_channels, self.config.image_size, self.config.image_size)
        if tuple(pixel_values.shape[1:]) != size:
            raise ValueError(f"pixel_values must be (B, {', '.join(map(str, size))}), got {tuple(pixel_values.shape)}")
        patch = int(self.config.patch_size or 0)
        return F.unfold(pixel_values, patch, stride=patch).mT
