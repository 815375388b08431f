"""The base of heads that score labels for a whole sequence."""

from typing import cast

from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling, SequenceClassifierOutput

from greenformers.model.classification import classification_loss
from greenformers.model.config import GreenformerConfig
from greenformers.model.encoder import GreenformerModel, GreenformerPreTrainedModel
from greenformers.model.loss import with_auxiliary


class Classifier(GreenformerPreTrainedModel):
    """Encoder, and a linear layer over the pooled vector of the sequence."""

    def __init__(self, config: GreenformerConfig) -> None:
        super().__init__(config)
        self.encoder = GreenformerModel(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, cast(int, config.num_labels))
        self.post_init()

    def head(
        self,
        out: BaseModelOutputWithPooling,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> SequenceClassifierOutput:
        """The head on an encoder output; arguments as in `forward`."""
        logits = self.classifier(self.dropout(out.pooler_output))
        loss = None if labels is None else classification_loss(logits, labels, self.config, num_items_in_batch)
        loss = with_auxiliary(loss, getattr(out, "auxiliary_loss", None), labels, num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=out.hidden_states, attentions=out.attentions
        )
