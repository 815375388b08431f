"""Replaced token detection. Clark 2020, arXiv:2003.10555 (ELECTRA); survey of faster transformers, III.

A small generator fills in masked tokens; the discriminator, which is the trained model in the end, predicts for every
token whether it is the original. Loss: masked LM of the generator + 50 x binary cross-entropy of the discriminator.
"""

from dataclasses import dataclass
from math import isnan
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.modeling_outputs import TokenClassifierOutput

from greenformers.data import Text
from greenformers.measure.quality import NotANumberError, evaluating
from greenformers.model import (
    GreenformerConfig,
    GreenformerForMaskedLM,
    GreenformerForTokenClassification,
    GreenformerPreTrainedModel,
)
from greenformers.model.loss import IGNORED
from greenformers.train.masked_lm import MaskedLM
from greenformers.train.stream import Numbered

WEIGHT = 50.0  # of the discriminator's loss; Clark 2020, 2
GENERATOR = 4  # the discriminator is so many times wider; Clark 2020, 3.2: 1/4 to 1/2 works best


@dataclass
class DetectionOutput(TokenClassifierOutput):
    """The output of the discriminator, and its labels.

    Attributes:
        truth: Labels (B, N), 1 where the token was replaced by another one.
    """

    truth: Tensor | None = None


class GeneratorAndDiscriminator(GreenformerPreTrainedModel):
    """Both networks of replaced token detection; they share the token embedding.

    Attributes:
        generator: Masked language model, a quarter as wide.
        discriminator: Token classifier with the labels original, 0, and replaced, 1.
    """

    base_model_prefix = "discriminator"
    _tied_weights_keys = {  # noqa: RUF012 - transformers' own form
        "generator.encoder.embedding.word.weight": "discriminator.encoder.embedding.word.weight",
        "generator.decoder.weight": "discriminator.encoder.embedding.word.weight",
    }

    def __init__(self, config: GreenformerConfig) -> None:
        super().__init__(config)
        self.discriminator = GreenformerForTokenClassification(config)
        self.generator = GreenformerForMaskedLM(generator_config(config))
        self.post_init()

    def forward(
        self,
        input_ids: Int[Tensor, "B N"],
        labels: Int[Tensor, "B N"],
        attention_mask: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> DetectionOutput:
        """The joint loss, and the discriminator's logits (B, N, 2).

        Args:
            input_ids: Tokens (B, N), some of them [MASK].
            labels: Original tokens of the masked positions (B, N), -100 elsewhere.
            attention_mask: Mask (B, N), 1 = keep.
            num_items_in_batch: Number of masked tokens of the whole batch, if this is a part of one.
        """
        filled = self.generator(input_ids, attention_mask, labels=labels, num_items_in_batch=num_items_in_batch)
        drawn, truth = self.replace(input_ids, labels, filled.logits)
        # The discriminator has a label for every token; labels a mask are the same number in every block.
        masks = (labels != IGNORED).sum().clamp(min=1)
        items = None if num_items_in_batch is None else (truth.numel() / masks) * num_items_in_batch
        judged = self.discriminator(drawn, attention_mask, labels=truth, num_items_in_batch=items)
        return DetectionOutput(loss=filled.loss + WEIGHT * judged.loss, logits=judged.logits, truth=truth)

    @torch.no_grad()
    def replace(self, input_ids: Tensor, labels: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Draw a token for every mask: tokens (B, N), and labels (B, N), 1 where the token is not the original."""
        masked = labels != IGNORED
        scores = (logits if logits.dim() == 2 else logits[masked]).float()  # (n, V); in half precision many would tie
        # Gumbel's trick: the argmax of scores plus such noise is a draw from their softmax.
        noise = -torch.empty_like(scores).exponential_().log()
        drawn = input_ids.masked_scatter(masked, (scores + noise).argmax(-1))
        return drawn, (masked & (drawn != labels)).long()


def generator_config(config: GreenformerConfig) -> GreenformerConfig:
    """Configuration of the generator: a quarter of the width, heads and feed-forward, and the same embedding width."""
    heads = max(1, config.num_attention_heads // GENERATOR)
    head_dim = config.hidden_size // config.num_attention_heads
    small = {
        "embedding_size": config.embedding_size or config.hidden_size,
        "hidden_size": heads * head_dim,
        "num_attention_heads": heads,
        "intermediate_size": max(1, config.intermediate_size // GENERATOR),
        "rank": None,  # it is small already
        "sparse_prediction": True,
    }
    return GreenformerConfig(**config.to_dict() | small)


class ReplacedTokenDetection(MaskedLM):
    """Blocks [CLS] text [SEP], masked with [MASK] only: the discriminator reads the tokens that the generator fills in.

    Args:
        data: Running text.
        tokenizer: Tokenizer of the text.
        length: Length of a block, in tokens.
    """

    metric = "detection"
    greater_is_better = True

    def __init__(self, data: Text, tokenizer: PreTrainedTokenizerFast, length: int) -> None:
        super().__init__(data, tokenizer, length, replaced=(1.0, 0.0))

    def config(self, **sizes: Any) -> GreenformerConfig:  # noqa: D102
        return super().config(num_labels=2, **sizes)

    def build(self, config: GreenformerConfig) -> PreTrainedModel:  # noqa: D102
        return GeneratorAndDiscriminator(config)

    def evaluate(self, model: PreTrainedModel, split: str, batch_size: int) -> dict[str, float]:
        """Joint loss, and the mean of the shares of original and of replaced tokens classified rightly, in percent.

        The generator's draws are the same at every evaluation.
        """
        loader = DataLoader(Numbered(self, split), batch_size=batch_size, collate_fn=self.collate)
        device = next(model.parameters()).device
        right, labelled = torch.zeros(2, dtype=torch.long), torch.zeros(2, dtype=torch.long)
        total, count = 0.0, 0
        with evaluating(model), torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(0)
            for batch in loader:
                batch = {name: value.to(device) for name, value in batch.items()}
                out = model(**batch, num_items_in_batch=1)
                total, count = total + out.loss.item(), count + self.scored(batch)
                predicted = out.logits.argmax(-1)
                for label in (0, 1):
                    positions = out.truth == label
                    right[label] += (predicted[positions] == label).sum().cpu()
                    labelled[label] += positions.sum().cpu()
        if isnan(total):
            raise NotANumberError("losses must be numbers, got nan")
        return {"loss": total / count, "detection": 100 * (right / labelled.clamp(min=1)).mean().item()}
