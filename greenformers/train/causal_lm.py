"""Causal language modelling: every token from those before it. Radford 2018; Vaswani 2017, 3.1."""

import torch
from transformers import PreTrainedModel

from greenformers.model import GreenformerConfig, GreenformerForCausalLM
from greenformers.train.objective import Batch, Example
from greenformers.train.text import LanguageModelling


class CausalLM(LanguageModelling):
    """Blocks of text; all tokens of a block but its first are predicted."""

    def example(self, split: str, index: int, source: torch.Generator) -> Example:  # noqa: D102
        tokens = self.blocks(split)[index].long()
        return {"input_ids": tokens, "labels": tokens}

    def scored(self, batch: Batch) -> int:  # noqa: D102
        return batch["labels"][:, 1:].numel()

    def build(self, config: GreenformerConfig) -> PreTrainedModel:  # noqa: D102
        return GreenformerForCausalLM(config)
