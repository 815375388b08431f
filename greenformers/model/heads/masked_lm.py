"""Masked language modelling. Devlin 2018, arXiv:1810.04805, 3.1, task 1."""

from typing import Any, cast

from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput
from transformers.utils.generic import can_return_tuple

from greenformers.model.config import GreenformerConfig
from greenformers.model.encoder import GreenformerModel, GreenformerPreTrainedModel
from greenformers.model.loss import asked_for, token_loss, with_auxiliary


class TokenPrediction(GreenformerPreTrainedModel):
    """Encoder and the scores of every token; the output embedding is the input embedding.

    Raises:
        ValueError: The configuration has no vocabulary.
    """

    _tied_weights_keys = {"decoder.weight": "encoder.embedding.word.weight"}  # noqa: RUF012 - transformers' own form

    def __init__(self, config: GreenformerConfig) -> None:
        super().__init__(config)
        if config.vocab_size is None:
            raise ValueError("masked language modelling needs a vocab_size, got None")
        width = config.embedding_size or config.hidden_size
        self.encoder = GreenformerModel(config)
        self.transform = nn.Linear(config.hidden_size, width)
        self.activation = ACT2FN[config.activation_of("dense")]
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(width, config.vocab_size)

    def get_output_embeddings(self) -> nn.Module:
        """The linear layer from vectors to scores of tokens."""
        return self.decoder

    def set_output_embeddings(self, new_embeddings: Any) -> None:
        """Replace the linear layer from vectors to scores of tokens."""
        self.decoder = new_embeddings

    def predict(self, x: Tensor, labels: Tensor | None, items: Tensor | int | None) -> tuple[Tensor | None, Tensor]:
        """The loss of the masked tokens, None without labels, and the logits, from the encoder's output (B, N, d)."""
        x, labels = asked_for(x, labels, self.config)
        logits = self.decoder(self.norm(self.activation(self.transform(x))))
        return None if labels is None else token_loss(logits, labels, items), logits


class GreenformerForMaskedLM(TokenPrediction):
    """Encoder that fills in masked tokens; the output embedding is the input embedding."""

    def __init__(self, config: GreenformerConfig) -> None:
        super().__init__(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "B N"] | None = None,
        attention_mask: Tensor | None = None,
        labels: Int[Tensor, "B N"] | None = None,
        num_items_in_batch: Tensor | int | None = None,
        token_type_ids: Int[Tensor, "B N"] | None = None,
        position_ids: Int[Tensor, "b N"] | None = None,
        inputs_embeds: Float[Tensor, "B N e"] | None = None,
        global_attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """Score every token at every position.

        Args:
            input_ids: Tokens (B, N).
            attention_mask: 1 = keep (B, N).
            labels: The right tokens (B, N), -100 at positions without a label.
            num_items_in_batch: Divisor of the loss; by default the number of labels of this batch.
            token_type_ids: Passed to the encoder, as all arguments that follow.
            position_ids: Positions of the tokens, from 0.
            inputs_embeds: Embeddings of the tokens, in place of `input_ids`.
            global_attention_mask: 1 = global, for mechanisms that take it.
            **kwargs: Further arguments of the encoder.

        Returns:
            loss in nats per token, if labels are given, and logits (B, N, vocabulary); with `sparse_prediction` and
            labels, the logits (n, vocabulary) of the n positions that have a label.
        """
        given = {"token_type_ids": token_type_ids, "position_ids": position_ids, "inputs_embeds": inputs_embeds}
        given["global_attention_mask"] = global_attention_mask
        out = self.encoder(input_ids, attention_mask, return_dict=True, **given, **kwargs)
        return self.head(out, labels, num_items_in_batch)

    def head(
        self, out: BaseModelOutput, labels: Tensor | None = None, num_items_in_batch: Tensor | int | None = None
    ) -> MaskedLMOutput:
        """The head on an encoder output; arguments as in `forward`."""
        loss, logits = self.predict(cast(Tensor, out.last_hidden_state), labels, num_items_in_batch)
        loss = with_auxiliary(loss, getattr(out, "auxiliary_loss", None), labels, num_items_in_batch)
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=out.hidden_states, attentions=out.attentions)
