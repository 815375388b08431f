"""Causal language modelling: every token is predicted from the tokens before it. Radford 2018; Vaswani 2017, 3.1."""

from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from greenformers.data import Text
from greenformers.model import GreenformerConfig, GreenformerForCausalLM
from greenformers.train.objective import Batch, Example
from greenformers.train.text import LanguageModelling


class CausalLM(LanguageModelling):
    """Blocks of text; all tokens of a block but its first are predicted.

    Args:
        data: Running text.
        tokenizer: Tokenizer of the text.
        length: Length of a block, in tokens.
        memory: Tokens of earlier blocks in the segment memory of the network; blocks are then read in their order.
    """

    def __init__(self, data: Text, tokenizer: PreTrainedTokenizerFast, length: int, *, memory: int = 0) -> None:
        super().__init__(data, tokenizer, length)
        if memory < 0:
            raise ValueError(f"memory must be at least 0, got {memory}")
        self.memory, self.in_order = memory, memory > 0

    def example(self, split: str, index: int, source: torch.Generator) -> Example:  # noqa: D102
        tokens = self.blocks(split)[index].long()
        return {"input_ids": tokens, "labels": tokens}

    def scored(self, batch: Batch) -> int:  # noqa: D102
        return batch["labels"][:, 1:].numel()

    def config(self, **sizes: Any) -> GreenformerConfig:  # noqa: D102
        return super().config(**{"memory_length": self.memory} | sizes)

    def build(self, config: GreenformerConfig) -> PreTrainedModel:  # noqa: D102
        return GreenformerForCausalLM(config)
