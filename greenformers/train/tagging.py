"""Tagging of words: named entities. The first token of a word has its tag. Devlin 2018, arXiv:1810.04805, 5.3."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from greenformers.data import Tagged
from greenformers.data._words import first_tokens
from greenformers.measure.entities import entity_scores
from greenformers.measure.quality import NotANumberError, evaluating
from greenformers.model import GreenformerConfig, GreenformerForTokenClassification
from greenformers.model.loss import IGNORED
from greenformers.train.objective import Batch, Example, Objective, padded
from greenformers.train.stream import Numbered
from greenformers.train.text import vocabulary


class Tagging(Objective):
    """Tags of the words of a sentence, [CLS] words [SEP]; a label stands at the first token of a word, -100 elsewhere.

    Args:
        data: Tagged sentences.
        tokenizer: Tokenizer of the sentences, which are read as words with single spaces between.
        length: Longest sentence in tokens; longer ones are cut, and words cut off count as outside of entities.

    Raises:
        ValueError: The length is out of range.
    """

    metric = "f1"
    greater_is_better = True

    def __init__(self, data: Tagged, tokenizer: PreTrainedTokenizerFast, length: int) -> None:
        if length < 3:
            raise ValueError(f"length must be at least 3, got {length}")
        self.data, self.tokenizer, self.length = data, tokenizer, length
        self._rows: dict[str, list[tuple[Tensor, Tensor]]] = {}
        if len(data.train):
            self.lengths = torch.tensor([len(ids) for ids, _ in self.rows("train")])

    def rows(self, split: str) -> list[tuple[Tensor, Tensor]]:
        """Tokens of every sentence of a split, int32, and for each the number of the word it is the first of, or -1."""
        if split not in self._rows:
            sentences = self.data.split(split).words
            read = self.tokenizer(
                [" ".join(words) for words in sentences], truncation=True, max_length=self.length,
                return_offsets_mapping=True, return_attention_mask=False, verbose=False,
            )  # fmt: skip
            self._rows[split] = [
                (torch.tensor(ids, dtype=torch.int32), torch.tensor(first_tokens(words, spans)))
                for words, ids, spans in zip(sentences, read["input_ids"], read["offset_mapping"], strict=True)
            ]
        return self._rows[split]

    def size(self, split: str) -> int:  # noqa: D102
        return len(self.rows(split))

    def example(self, split: str, index: int, source: torch.Generator) -> Example:  # noqa: D102
        ids, words = self.rows(split)[index]
        tags = torch.tensor(self.data.split(split).tags[index])
        return {"input_ids": ids.long(), "labels": torch.where(words < 0, IGNORED, tags[words.clamp(min=0)])}

    def collate(self, examples: list[Example]) -> Batch:  # noqa: D102
        rows = [example["input_ids"] for example in examples]
        return {
            "input_ids": padded(rows, self.tokenizer.pad_token_id),
            "attention_mask": padded([torch.ones_like(row) for row in rows], 0),
            "labels": padded([example["labels"] for example in examples], IGNORED),
        }

    def config(self, **sizes: Any) -> GreenformerConfig:  # noqa: D102
        names = dict(enumerate(self.data.tags))
        shape: dict[str, Any] = {
            "max_position_embeddings": self.length, "id2label": names,
            "label2id": {name: number for number, name in names.items()},
        }  # fmt: skip
        return GreenformerConfig(**vocabulary(self.tokenizer) | shape | sizes)

    def build(self, config: GreenformerConfig) -> PreTrainedModel:  # noqa: D102
        return GreenformerForTokenClassification(config)

    def evaluate(self, model: PreTrainedModel, split: str, batch_size: int) -> dict[str, float]:
        """F1, precision and recall of entities in percent, see `greenformers.measure.entities.entity_scores`."""
        return entity_scores(self.predicted(model, split, batch_size), self.right(split))

    def right(self, split: str) -> list[list[str]]:
        """The right tags of the words of each sentence."""
        return [[self.data.tags[tag] for tag in row] for row in self.data.split(split).tags]

    def predicted(self, model: PreTrainedModel, split: str, batch_size: int) -> list[list[str]]:
        """The tags that a model gives the words of each sentence; words that were cut off are outside of entities.

        Raises:
            NotANumberError: A logit is nan.
        """
        names, sentences = self.data.tags, self.data.split(split)
        tags = [[0] * len(words) for words in sentences.words]
        loader = DataLoader(Numbered(self, split), batch_size=batch_size, collate_fn=self.collate)
        device = next(model.parameters()).device
        place = 0
        with evaluating(model), torch.no_grad():
            for batch in loader:
                inputs = {name: batch[name].to(device) for name in ("input_ids", "attention_mask")}
                logits = model(**inputs).logits
                # argmax would take nan for the largest, and find an entity nowhere or everywhere.
                if logits[inputs["attention_mask"].bool()].isnan().any():
                    raise NotANumberError("logits must be numbers, got nan")
                for predicted in logits.argmax(-1).cpu():
                    _, words = self.rows(split)[place]
                    for at in (words >= 0).nonzero().flatten().tolist():
                        tags[place][int(words[at])] = int(predicted[at])
                    place += 1
        return [[names[tag] for tag in row] for row in tags]
