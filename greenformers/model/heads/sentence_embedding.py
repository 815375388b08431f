"""Sentence embeddings, trained on pairs: each text is to find its partner among all of the batch.

Henderson 2017, arXiv:1705.00652, 4.4 (the other pairs of the batch are the negatives); Chen 2020, arXiv:2002.05709, 2.1
(cosine similarity over a temperature).
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from transformers.utils.generic import can_return_tuple

from greenformers.model.config import GreenformerConfig
from greenformers.model.encoder import GreenformerModel, GreenformerPreTrainedModel
from greenformers.model.heads._texts import one_by_one, texts_an_example
from greenformers.model.loss import token_loss, with_auxiliary
from greenformers.model.outputs import SentenceEmbeddingOutput


class GreenformerForSentenceEmbedding(GreenformerPreTrainedModel):
    """Encoder whose pooled vector, of norm 1, represents a text: products of two are their cosine similarity.

    `pooling` in the configuration says how vectors are pooled.
    """

    def __init__(self, config: GreenformerConfig) -> None:
        super().__init__(config)
        self.encoder = GreenformerModel(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "B ... N"] | None = None,
        attention_mask: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        token_type_ids: Int[Tensor, "B ... N"] | None = None,
        position_ids: Int[Tensor, "b ... N"] | None = None,
        inputs_embeds: Float[Tensor, "B ... N e"] | None = None,
        global_attention_mask: Tensor | None = None,
        return_loss: bool = True,
        **kwargs: Any,
    ) -> SentenceEmbeddingOutput:
        """Embed texts, or pairs of texts that belong together.

        Args:
            input_ids: Tokens (B, N), or (B, 2, N) of pairs; the arguments that follow then have this dimension too.
            attention_mask: 1 = keep.
            num_items_in_batch: Divisor of the loss; by default the number of pairs of this batch.
            token_type_ids: Passed to the encoder, as all arguments that follow.
            position_ids: Positions of the tokens, from 0.
            inputs_embeds: Embeddings of the tokens, in place of `input_ids`.
            global_attention_mask: 1 = global, for mechanisms that take it.
            return_loss: Whether the loss of pairs is computed; by this name the Trainer knows of a loss without labels.
            **kwargs: Further arguments of the encoder.

        Returns:
            embeddings (B, d) of norm 1, or (B, 2, d) of pairs. For pairs also the loss in nats per pair: the
                cross-entropy
            of the second text of each pair among the second texts of the batch, given the first.

        Raises:
            ValueError: There are not two texts per example.
        """
        texts = texts_an_example(input_ids, inputs_embeds)
        if texts not in (None, 2):
            raise ValueError(f"input_ids must be (B, N), or (B, 2, N) of pairs; got {texts} texts an example")
        given = {
            "input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids,
            "position_ids": position_ids, "inputs_embeds": inputs_embeds,
            "global_attention_mask": global_attention_mask,
        }  # fmt: skip
        out = self.encoder(return_dict=True, **(given if texts is None else one_by_one(given)), **kwargs)
        embeddings = F.normalize(out.pooler_output, dim=-1)
        loss = None
        if texts is not None:
            embeddings = embeddings.unflatten(0, (-1, 2))
            if return_loss:
                loss = self._loss(embeddings, num_items_in_batch, getattr(out, "auxiliary_loss", None))
        return SentenceEmbeddingOutput(
            loss=loss, embeddings=embeddings, hidden_states=out.hidden_states, attentions=out.attentions
        )

    def _loss(self, pairs: Tensor, items: Tensor | int | None, auxiliary: Tensor | None) -> Tensor | None:
        first, second = pairs.unbind(1)
        scores = first @ second.mT / self.config.contrastive_temperature  # (B, B), the right ones on the diagonal
        own = torch.arange(len(scores), device=scores.device)
        return with_auxiliary(token_loss(scores, own, items), auxiliary, own, items)
