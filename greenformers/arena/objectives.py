"""What networks are trained for: the classes of a task, or before that to restore masked tokens of its own inputs."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from greenformers.arena.inputs import Inputs
from greenformers.measure.quality import correct, predict
from greenformers.model import GreenformerConfig, GreenformerForMaskedLM
from greenformers.model.loss import IGNORED
from greenformers.train.classification import TextClassification
from greenformers.train.masked_lm import masked
from greenformers.train.objective import Batch, Example, Objective, padded
from greenformers.train.stream import Numbered
from greenformers.train.text import mean_loss, vocabulary


class Classification(TextClassification):
    """Classes of sequences. A batch has a mask where it is padded, and none where all of its sequences are as long.

    Args:
        inputs: Sequences and their labels.
    """

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        super().__init__(inputs.data, inputs.tokenizer, inputs.length)
        self.lengths = _lengths(inputs)

    def rows(self, split: str) -> list[Tensor]:  # noqa: D102
        self.data.split(split)  # which raises for splits that are not there
        return self.inputs.rows[split]

    def collate(self, examples: list[Example]) -> Batch:  # noqa: D102
        return _without_idle_mask(super().collate(examples))

    def right(self, model: PreTrainedModel, split: str, batch_size: int) -> Tensor:
        """Which examples of a split a model gets right, booleans (n,)."""
        return correct(*predict(model, Numbered(self, split), batch_size=batch_size, collate=self.collate))


class Restoration(Objective):
    """Masked tokens of the inputs, restored: masked language modelling of whole sequences. Amos 2023, arXiv:2310.02980.

    Masks are new every time an example is seen, and the same at every evaluation; special tokens are never masked.

    Args:
        inputs: Sequences; their labels are not used.
        share: Share of the tokens that are predicted.

    Raises:
        ValueError: The share is out of range.
    """

    metric = "loss"
    greater_is_better = False

    def __init__(self, inputs: Inputs, share: float) -> None:
        if not 0 < share < 1:
            raise ValueError(f"share must be above 0 and below 1, got {share}")
        self.inputs, self.share, self.lengths = inputs, share, _lengths(inputs)

    def size(self, split: str) -> int:  # noqa: D102
        return len(self.inputs.rows[split])

    def example(self, split: str, index: int, source: torch.Generator) -> Example:  # noqa: D102
        row = self.inputs.rows[split][index].long()
        plain = ~self.inputs.special(row)
        ids, labels = row.clone(), torch.full_like(row, IGNORED)
        ids[plain], labels[plain] = masked(row[plain], self.inputs.tokenizer, source, share=self.share)
        return {"input_ids": ids, "labels": labels}

    def collate(self, examples: list[Example]) -> Batch:  # noqa: D102
        rows = [example["input_ids"] for example in examples]
        return _without_idle_mask({
            "input_ids": padded(rows, self.inputs.tokenizer.pad_token_id),
            "attention_mask": padded([torch.ones_like(row) for row in rows], 0),
            "labels": padded([example["labels"] for example in examples], IGNORED),
        })  # fmt: skip

    def config(self, **sizes: Any) -> GreenformerConfig:  # noqa: D102
        shape: dict[str, Any] = {"max_position_embeddings": self.inputs.length, "sparse_prediction": True}
        return GreenformerConfig(**vocabulary(self.inputs.tokenizer) | shape | sizes)

    def build(self, config: GreenformerConfig) -> PreTrainedModel:  # noqa: D102
        return GreenformerForMaskedLM(config)

    def evaluate(self, model: PreTrainedModel, split: str, batch_size: int) -> dict[str, float]:
        """Mean loss in nats of a masked token."""
        return {"loss": mean_loss(model, self, split, batch_size)}


def _lengths(inputs: Inputs) -> Tensor | None:
    """Lengths of the training sequences; None where all are as long, and need not be sorted."""
    lengths = torch.tensor([len(row) for row in inputs.rows["train"]])
    return None if (lengths == lengths[0]).all() else lengths


def _without_idle_mask(batch: Batch) -> Batch:
    """The batch, without a mask that hides nothing: attentions have a faster form for that."""
    if batch["attention_mask"].all():
        del batch["attention_mask"]
    return batch
