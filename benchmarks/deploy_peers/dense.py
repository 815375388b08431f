"""The dense network as the peers take it: a function of its three inputs to the last hidden state alone."""

from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModel

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUT = "last_hidden_state"


class Dense(nn.Module):
    """A network of `transformers`, without its pooler."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.network = AutoModel.from_pretrained(folder, add_pooling_layer=False).eval()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """The last hidden state (B, N, d)."""
        out = self.network(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        return out.last_hidden_state


def example() -> dict[str, Tensor]:
    """Inputs to trace it with."""
    return {name: torch.ones(2, 16, dtype=torch.long) for name in INPUTS}
