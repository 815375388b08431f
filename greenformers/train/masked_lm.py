"""Masked language modelling. Devlin 2019, arXiv:1810.04805, 3.1.

15 % of the tokens are asked for; of these 80 % become [MASK], 10 % a random token, 10 % stay.
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


class MaskedLM(LanguageModelling):
    """Blocks [CLS] text [SEP]; new masks every time an example is seen, the same ones at every evaluation.

    Args:
        data: running text.
        tokenizer: turns it into tokens.
        length: of a block, in tokens.
        replaced: of the tokens asked for, the shares that become [MASK] and a random token; the rest stay.
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
        hidden, labels = self._masked(text, source)
        none = torch.tensor([IGNORED])
        return {"input_ids": torch.cat([first, hidden, last]), "labels": torch.cat([none, labels, none])}

    def _masked(self, tokens: Tensor, source: torch.Generator) -> tuple[Tensor, Tensor]:
        # The same number in every block: a batch in parts has the loss of the whole, whatever stands in which part.
        count = max(1, round(MASKED * len(tokens)))
        asked = torch.zeros(len(tokens), dtype=torch.bool)
        asked[torch.randperm(len(tokens), generator=source)[:count]] = True
        fate = torch.rand(tokens.shape, generator=source)
        others = torch.randint(len(self.tokenizer), tokens.shape, generator=source)
        to_mask, to_random = self.replaced
        hidden = torch.where(asked & (fate < to_mask), self.tokenizer.mask_token_id, tokens)
        hidden = torch.where(asked & (fate >= to_mask) & (fate < to_mask + to_random), others, hidden)
        return hidden, tokens.masked_fill(~asked, IGNORED)

    def config(self, **sizes: Any) -> GreenformerConfig:  # noqa: D102
        return super().config(**{"sparse_prediction": True} | sizes)

    def build(self, config: GreenformerConfig) -> PreTrainedModel:  # noqa: D102
        return GreenformerForMaskedLM(config)
