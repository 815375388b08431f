"""An LSTM language model, trained and scored as the networks with a segment memory are.

What it remembers are the tokens before a segment, as many as its memory has: they are read first, from a state of
zeros. So it is told exactly how far back it can look, and gradients end with the segment, as they do for memories.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from greenformers.model.memory import SegmentMemory
from greenformers.model.outputs import CausalLMOutput


class LstmConfig(PretrainedConfig):
    """Sizes: d of embeddings and outputs, cells of each layer, and layers."""

    model_type = "lstm"

    def __init__(self, vocab_size: int = 1, d: int = 128, cells: int = 256, layers: int = 2, **more: Any) -> None:
        self.vocab_size, self.d, self.cells, self.layers = vocab_size, d, cells, layers
        super().__init__(**more)


class Lstm(PreTrainedModel):
    """LSTM layers with projected outputs (Sak 2014, arXiv:1402.1128); one matrix for embeddings and scores."""

    config_class = LstmConfig

    def __init__(self, config: LstmConfig) -> None:
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.d)
        nn.init.normal_(self.embed.weight, std=config.d**-0.5)
        self.lstm = nn.LSTM(config.d, config.cells, config.layers, batch_first=True, proj_size=config.d)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor | None = None,
        memory: SegmentMemory | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **_: Any,
    ) -> CausalLMOutput:
        """Score the token after each position (B, N, vocabulary); `memory` holds the tokens before these."""
        state = None
        if memory is not None and memory.recent:
            with torch.no_grad():
                _, state = self.lstm(self.embed(memory.recent[0][..., 0].long()))
        x, _state = self.lstm(self.embed(input_ids), state)
        logits = F.linear(x, self.embed.weight, self.bias)
        loss = None
        if labels is not None:
            total = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
            loss = total / (labels[:, 1:].numel() if num_items_in_batch is None else num_items_in_batch)
        return CausalLMOutput(loss=loss, logits=logits, memory=None if memory is None else after(memory, input_ids))


def after(memory: SegmentMemory, ids: Tensor) -> SegmentMemory:
    """The tokens that the next segment remembers."""
    ids = ids[..., None].float()
    both = torch.cat([memory.recent[0], ids], 1) if memory.recent else ids
    return SegmentMemory(
        memory.length, (both[:, max(0, both.shape[1] - memory.length) :],), (both[:, :0],), None, (None,)
    )


def lstm(vocabulary: int, sizes: Mapping[str, int]) -> Lstm:
    """An LSTM for a vocabulary, with sizes as `LstmConfig` has them."""
    return Lstm(LstmConfig(vocab_size=vocabulary, **sizes))
