"""Objectives of training: the examples, how they form a batch, and how the trained model is evaluated."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from greenformers.model.loss import IGNORED

Example = dict[str, Tensor]
Batch = dict[str, Tensor]


class Objective(ABC):
    """Examples of three splits, and the task that a model is trained for on them.

    Attributes:
        metric: Name of the score that decides which model is best.
        greater_is_better: Whether a greater score is better.
        lengths: Length of every training example, where they differ.
        memory: Positions of earlier examples that the segment memory of a network holds; 0 for none.
        in_order: Whether examples are taken in their order, each row of a batch going on where it ended in the batch
            before, as a segment memory needs it.
        partial: Whether parts of a model may have no gradient in a step, which several processes must agree on.
        bf16: Whether a model computes its products in bfloat16 of itself, where the schedule does not ask for it.
    """

    metric: str
    greater_is_better: ClassVar[bool]
    lengths: Tensor | None = None
    memory: int = 0
    in_order: bool = False
    partial: ClassVar[bool] = False
    bf16: bool = False

    @abstractmethod
    def size(self, split: str) -> int:
        """Number of examples in "train", "valid" or "test"."""

    @abstractmethod
    def example(self, split: str, index: int, source: torch.Generator) -> Example:
        """One example; anything random in it is drawn from `source`."""

    @abstractmethod
    def collate(self, examples: list[Example]) -> Batch:
        """A batch: the arguments of the model's `forward`."""

    def scored(self, batch: Batch) -> int:
        """Number of labels that the loss of a batch is averaged over."""
        return int((batch["labels"] != IGNORED).sum())

    @abstractmethod
    def config(self, **sizes: Any) -> Any:
        """The configuration of a network for this objective."""

    @abstractmethod
    def build(self, config: Any) -> PreTrainedModel:
        """A new, untrained model."""

    @abstractmethod
    def evaluate(self, model: PreTrainedModel, split: str, batch_size: int) -> dict[str, float]:
        """The scores of a model on a split, `metric` among them."""

    def add_to(self, folder: Path, model: PreTrainedModel) -> None:  # noqa: B027 - most objectives have nothing to add
        """Write what belongs to a trained model, besides weights and tokenizer, to the folder that it is saved in."""


def padded(rows: list[Tensor], value: int) -> Tensor:
    """Rows of different length as one tensor (B, N), the shorter ones padded with `value`."""
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)
