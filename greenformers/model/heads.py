"""Heads on the encoder: masked language modelling and sequence classification."""

from typing import Any

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_outputs import MaskedLMOutput, SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from greenformers.model.config import GreenformerConfig
from greenformers.model.encoder import GreenformerModel, GreenformerPreTrainedModel


class GreenformerForMaskedLM(GreenformerPreTrainedModel):
    """Encoder that fills in masked tokens; the output embedding is the input embedding."""

    _tied_weights_keys = {"decoder.weight": "encoder.embedding.word.weight"}  # noqa: RUF012 - transformers' own form

    def __init__(self, config: GreenformerConfig) -> None:
        super().__init__(config)
        if config.vocab_size is None:
            raise ValueError("masked language modelling needs a vocab_size, got None")
        self.encoder = GreenformerModel(config)
        self.transform = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        """The map from vectors to scores of tokens."""
        return self.decoder

    def set_output_embeddings(self, new_embeddings: Any) -> None:
        """Replace the map from vectors to scores of tokens."""
        self.decoder = new_embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "B N"],
        attention_mask: Tensor | None = None,
        labels: Int[Tensor, "B N"] | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """Score every token at every position.

        Args:
            input_ids: tokens (B, N).
            attention_mask: 1 = keep (B, N).
            labels: the right tokens (B, N), -100 where none is asked for.
            **kwargs: to the encoder.

        Returns:
            loss in nats a token, if labels are given, and logits (B, N, vocabulary).
        """
        out = self.encoder(input_ids, attention_mask, **kwargs)
        logits = self.decoder(self.norm(self.activation(self.transform(out.last_hidden_state))))
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=out.hidden_states)


class GreenformerForSequenceClassification(GreenformerPreTrainedModel):
    """Encoder that labels a whole sequence; with one label, it predicts a number."""

    def __init__(self, config: GreenformerConfig) -> None:
        super().__init__(config)
        self.encoder = GreenformerModel(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels or 1)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "B N"] | None = None,
        attention_mask: Tensor | None = None,
        input_values: Float[Tensor, "B n C"] | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Score every label.

        Args:
            input_ids: tokens (B, N).
            attention_mask: 1 = keep.
            input_values: values (B, n, C), in place of tokens.
            labels: classes (B,); numbers (B,) where the network has one label; 0 or 1 for each label (B, labels) where
                the configuration's problem_type is "multi_label_classification".
            **kwargs: to the encoder.

        Returns:
            loss (cross-entropy in nats, or squared error for numbers) if labels are given, and logits (B, labels).
        """
        out = self.encoder(input_ids, attention_mask, input_values, **kwargs)
        logits = self.classifier(self.dropout(out.pooler_output))
        loss = None if labels is None else self._loss(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=out.hidden_states)

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.config.problem_type == "multi_label_classification":
            return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
        if self.config.num_labels == 1:
            return F.mse_loss(logits.squeeze(-1), labels.to(logits.dtype))
        return F.cross_entropy(logits, labels)
