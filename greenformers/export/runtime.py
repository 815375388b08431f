"""An exported file in the place of its model, so that quality is judged on texts as its runtime computes them."""

import copy
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import ModelOutput

from greenformers.data._pooling import attach, pooling_of
from greenformers.export.network import MASK, TYPES, Network, named
from greenformers.export.write import reader


class RuntimeModel(nn.Module):
    """The file of a format, called as the model is; with its configuration and pooling.

    Args:
        name: Format of the file.
        folder: Folder of the export.
        model: The model that was exported.
        tokenizer: Its tokenizer, if it has one.

    Raises:
        ValueError: The file cannot be read.
    """

    def __init__(
        self, name: str, folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None
    ) -> None:
        super().__init__()
        network = Network(model, tokenizer)
        self.config, self.inputs, self.outputs = copy.deepcopy(model.config), network.inputs, network.outputs
        self.call = reader(name, folder, network.inputs)
        attach(self, pooling_of(model))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **others: Tensor) -> ModelOutput:
        """The outputs of a batch (B, N); a mask that is missing keeps all tokens, and token types that are are 0.

        Raises:
            ValueError: An input is given that the file does not have.
        """
        foreign = sorted(others.keys() - set(self.inputs) - {TYPES})
        if foreign:
            raise ValueError(f"an exported file takes {', '.join(self.inputs)}, and not {foreign[0]}")
        given = {
            "input_ids": input_ids,
            MASK: torch.ones_like(input_ids) if attention_mask is None else attention_mask,
            TYPES: others.get(TYPES, torch.zeros_like(input_ids)),
        }
        return ModelOutput(named(self.outputs, self.call(*(given[name].contiguous() for name in self.inputs))))
