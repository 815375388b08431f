"""Masked language modelling. Devlin 2019, arXiv:1810.04805, 3.1.

15 % of the tokens are predicted; of these 80 % become [MASK], 10 % a random token, 10 % stay.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from greenformers.data import Text
from greenformers.model import GreenformerConfig, GreenformerForMaskedLM
from greenformers.model.loss import IGNORED
from greenformers.train.objective import Example
from greenformers.train.text import LanguageModelling

MASKED, TO_MASK, TO_RANDOM = 0.15, 0.8, 0.1


def masked(
    tokens: Tensor,
    tokenizer: PreTrainedTokenizerFast,
    source: torch.Generator,
    *,
    share: float = MASKED,
    replaced: tuple[float, float] = (TO_MASK, TO_RANDOM),
    places: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Choose tokens to be predicted, and replace most of them.

    Args:
        tokens: Tokens (N,) int64.
        tokenizer: Tokenizer of the tokens.
        source: Source of all random draws.
        share: Share of the tokens that are predicted; at least one is.
        replaced: Shares of the predicted tokens that become [MASK] and a random token; the rest stay.
        places: Places of tokens that may be predicted, those that are not special; None for all.

    Returns:
        The inputs (N,), and the labels (N,), -100 where nothing is predicted.
    """
    # The same number in every block: so the loss of a batch in parts is that of the whole batch.
    count = max(1, round(share * len(tokens)))
    chosen = torch.zeros(len(tokens), dtype=torch.bool)
    places = torch.arange(len(tokens)) if places is None else places
    chosen[places[torch.randperm(len(places), generator=source)[:count]]] = True
    draws = torch.rand(tokens.shape, generator=source)
    random_tokens = torch.randint(len(tokenizer), tokens.shape, generator=source)
    to_mask, to_random = replaced
    inputs = torch.where(chosen & (draws < to_mask), tokenizer.mask_token_id, tokens)
    inputs = torch.where(chosen & (draws >= to_mask) & (draws < to_mask + to_random), random_tokens, inputs)
    return inputs, tokens.masked_fill(~chosen, IGNORED)


class MaskedLM(LanguageModelling):
    """Blocks [CLS] text [SEP]; masks are new every time an example is seen, and the same at every evaluation.

    Args:
        data: Running text.
        tokenizer: Tokenizer of the text.
        length: Length of a block, in tokens.
        replaced: Shares of the predicted tokens that become [MASK] and a random token; the rest stay.
    """

    markers = 2

    def __init__(
        self,
        data: Text,
        tokenizer: PreTrainedTokenizerFast,
        length: int,
        *,
        replaced: tuple[float, float] = (TO_MASK, TO_RANDOM),
    ) -> None:
        super().__init__(data, tokenizer, length)
        self.replaced = replaced

    def example(self, split: str, index: int, source: torch.Generator) -> Example:  # noqa: D102
        text = self.blocks(split)[index].long()
        first, last = (torch.tensor([token]) for token in (self.tokenizer.cls_token_id, self.tokenizer.sep_token_id))
        inputs, labels = masked(text, self.tokenizer, source, replaced=self.replaced, places=self.places(text))
        ignored = torch.tensor([IGNORED])
        return {"input_ids": torch.cat([first, inputs, last]), "labels": torch.cat([ignored, labels, ignored])}

    def places(self, text: Tensor) -> Tensor | None:
        """Places of the tokens of a block that may be predicted; None for all."""

    def config(self, **sizes: Any) -> GreenformerConfig:  # noqa: D102
        return super().config(**{"sparse_prediction": True} | sizes)

    def build(self, config: GreenformerConfig) -> PreTrainedModel:  # noqa: D102
        return GreenformerForMaskedLM(config)
