"""What a run learns: its examples, how they make a batch, and how the trained model is judged."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from greenformers.model.loss import IGNORED

Example = dict[str, Tensor]
Batch = dict[str, Tensor]


class Objective(ABC):
    """Examples of three splits, and what is asked about them.

    Attributes:
        metric: the score that decides which model is best.
        greater_is_better: of that score.
        lengths: length of every training example, where they differ.
        memory: positions of earlier examples that a network's memory holds; 0: none.
        in_order: examples are taken in their order, each row of a batch going on where it stopped; needed for memory.
    """

    metric: ClassVar[str]
    greater_is_better: ClassVar[bool]
    lengths: Tensor | None = None
    memory: int = 0
    in_order: bool = False

    @abstractmethod
    def size(self, split: str) -> int:
        """Number of examples in "train", "valid" or "test"."""

    @abstractmethod
    def example(self, split: str, index: int, source: torch.Generator) -> Example:
        """One example; what is random about it is drawn from `source`."""

    @abstractmethod
    def collate(self, examples: list[Example]) -> Batch:
        """A batch, the arguments of the model's forward."""

    def scored(self, batch: Batch) -> int:
        """Number of labels that the loss of a batch is about."""
        return int((batch["labels"] != IGNORED).sum())

    @abstractmethod
    def config(self, **sizes: Any) -> Any:
        """The configuration of a network for this objective."""

    @abstractmethod
    def build(self, config: Any) -> PreTrainedModel:
        """A fresh model."""

    @abstractmethod
    def evaluate(self, model: PreTrainedModel, split: str, batch_size: int) -> dict[str, float]:
        """The scores of a model on a split, `metric` among them."""


def padded(rows: list[Tensor], value: int) -> Tensor:
    """Rows of different length as one tensor (B, N), `value` behind the shorter ones."""
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)
