"""Classification and regression of sequences: of images or of texts."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from greenformers.data import Labelled, Split, Splits
from greenformers.data._pairs import encoded_pairs
from greenformers.measure.correlation import pearson, spearman
from greenformers.measure.quality import NotANumberError, accuracy, evaluating, predict
from greenformers.model import GreenformerConfig, GreenformerForSequenceClassification
from greenformers.train.objective import Batch, Example, Objective, padded
from greenformers.train.stream import Numbered
from greenformers.train.text import vocabulary


class ImageClassification(Objective):
    """Classification of images as sequences of pixels. Where there is no validation split, it is the test images.

    Args:
        data: Labelled images.
    """

    metric = "accuracy"
    greater_is_better = True

    def __init__(self, data: Splits) -> None:
        self.data = data
        self._splits = {
            "train": data.train,
            "valid": data.test if data.valid is None else data.valid,
            "test": data.test,
        }

    def size(self, split: str) -> int:  # noqa: D102
        return len(self._split(split))

    def _split(self, name: str) -> Split:
        if name not in self._splits:
            raise ValueError(f"split must be one of {', '.join(self._splits)}, got {name!r}")
        return self._splits[name]

    def example(self, split: str, index: int, source: torch.Generator) -> Example:  # noqa: D102
        return self._split(split)[index]

    def collate(self, examples: list[Example]) -> Batch:  # noqa: D102
        return default_collate(examples)

    def config(self, **sizes: Any) -> GreenformerConfig:  # noqa: D102
        shape: dict[str, Any] = {
            "vocab_size": None,
            "input_features": 1,
            "max_position_embeddings": self.data.length + 1,
        }
        return GreenformerConfig(**shape | {"num_labels": self.data.classes} | sizes)

    def build(self, config: GreenformerConfig) -> PreTrainedModel:  # noqa: D102
        return GreenformerForSequenceClassification(config)

    def evaluate(self, model: PreTrainedModel, split: str, batch_size: int) -> dict[str, float]:  # noqa: D102
        return {"accuracy": accuracy(*predict(model, self._split(split), batch_size=batch_size))}


class TextClassification(Objective):
    """Classification of texts of one or two segments, [CLS] a [SEP] b [SEP].

    Args:
        data: Labelled texts.
        tokenizer: Tokenizer of the texts.
        length: Longest text in tokens; longer texts are cut.

    Raises:
        ValueError: The length is out of range.
    """

    metric = "accuracy"
    greater_is_better = True

    def __init__(self, data: Labelled, tokenizer: PreTrainedTokenizerFast, length: int) -> None:
        if length < 4:
            raise ValueError(f"length must be at least 4, got {length}")
        self.data, self.tokenizer, self.length = data, tokenizer, length
        self._rows: dict[str, list[Tensor]] = {}
        if len(data.train):
            self.lengths = torch.tensor([len(row) for row in self.rows("train")])

    def rows(self, split: str) -> list[Tensor]:
        """The tokens of every text of a split, int32."""
        if split not in self._rows:
            self._rows[split] = [torch.tensor(row, dtype=torch.int32) for row in self._tokens(split)]
        return self._rows[split]

    def _tokens(self, split: str) -> Iterable[list[int]]:
        segments = list(zip(*self.data.split(split).texts, strict=True))
        if len(segments) == 2:
            first, second = segments
            return (row["input_ids"] for row in encoded_pairs(self.tokenizer, first, second, self.length))
        limits: dict[str, Any] = {"truncation": True, "max_length": self.length}
        rows = self.tokenizer(*map(list, segments), **limits, return_attention_mask=False, verbose=False)
        return rows["input_ids"]

    def size(self, split: str) -> int:  # noqa: D102
        return len(self.rows(split))

    def example(self, split: str, index: int, source: torch.Generator) -> Example:  # noqa: D102
        label = torch.tensor(self.data.split(split).labels[index])
        return {"input_ids": self.rows(split)[index].long(), "labels": label}

    def collate(self, examples: list[Example]) -> Batch:  # noqa: D102
        rows = [example["input_ids"] for example in examples]
        return {
            "input_ids": padded(rows, self.tokenizer.pad_token_id),
            "attention_mask": padded([torch.ones_like(row) for row in rows], 0),
            "labels": torch.stack([example["labels"] for example in examples]),
        }

    def config(self, **sizes: Any) -> GreenformerConfig:  # noqa: D102
        labels = len(self.data.classes) if self.data.classes else 1
        shape: dict[str, Any] = {"max_position_embeddings": self.length, "num_labels": labels}
        return GreenformerConfig(**vocabulary(self.tokenizer) | shape | sizes)

    def build(self, config: GreenformerConfig) -> PreTrainedModel:  # noqa: D102
        return GreenformerForSequenceClassification(config)

    def evaluate(self, model: PreTrainedModel, split: str, batch_size: int) -> dict[str, float]:  # noqa: D102
        predictions = predict(model, Numbered(self, split), batch_size=batch_size, collate=self.collate)
        return {"accuracy": accuracy(*predictions)}


class TextRegression(TextClassification):
    """Regression of texts of one or two segments: a number for each."""

    metric = "spearman"

    def predicted(self, model: PreTrainedModel, split: str, batch_size: int) -> tuple[Tensor, Tensor]:
        """Predictions and scores of the texts of a split (n,), float64, on the CPU."""
        loader = DataLoader(Numbered(self, split), batch_size=batch_size, collate_fn=self.collate)
        device = next(model.parameters()).device
        predictions, targets = [], []
        with evaluating(model), torch.no_grad():
            for batch in loader:
                targets.append(batch.pop("labels").double())
                inputs = {name: value.to(device) for name, value in batch.items()}
                predictions.append(model(**inputs).logits.squeeze(-1).cpu().double())
        return torch.cat(predictions), torch.cat(targets)

    def evaluate(self, model: PreTrainedModel, split: str, batch_size: int) -> dict[str, float]:
        """Spearman's and Pearson's correlation in percent (0 where all are equal), and the root mean squared error.

        Raises:
            NotANumberError: A prediction is nan.
        """
        x, y = self.predicted(model, split, batch_size)
        if x.isnan().any():  # numbers that are none have no order
            raise NotANumberError("predictions must be numbers, got nan")
        return {
            "spearman": 100 * spearman(x.numpy(), y.numpy()),
            "pearson": 100 * pearson(x.numpy(), y.numpy()),
            "rmse": (x - y).square().mean().sqrt().item(),
        }
