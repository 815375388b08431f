"""Sequence to sequence with teacher forcing: target tokens are predicted from the source and the target before them."""

import math
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from greenformers.data import Pairs, Summaries
from greenformers.model import GreenformerConfig, GreenformerForSeq2SeqLM
from greenformers.model.loss import IGNORED
from greenformers.train.objective import Batch, Example, Objective, padded
from greenformers.train.text import mean_loss, vocabulary


class Seq2Seq(Objective):
    """Pairs of texts; source [CLS] text [SEP], target text [SEP] after the start token [CLS].

    Args:
        data: Pairs of sentences; or documents, of which the first summary is the target.
        tokenizer: Tokenizer of sources and targets.
        length: Longest source in tokens; longer ones are cut.
        target_length: Longest target in tokens, with its end; longer ones are cut. None: as long as the source.

    Raises:
        ValueError: A length is out of range.
    """

    metric = "loss"
    greater_is_better = False

    def __init__(
        self,
        data: Pairs | Summaries,
        tokenizer: PreTrainedTokenizerFast,
        length: int,
        target_length: int | None = None,
    ) -> None:
        if length < 4:
            raise ValueError(f"length must be at least 4, got {length}")
        if target_length is not None and not 2 <= target_length <= length:
            raise ValueError(f"target_length must be in 2..{length}, the length, got {target_length}")
        self.data, self.tokenizer, self.length = data, tokenizer, length
        self.target_length = length if target_length is None else target_length
        self._pairs: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self.lengths = torch.tensor([max(len(source), len(target)) for source, target in self.pairs("train")])

    def texts(self, split: str) -> list[tuple[str, str]]:
        """Source and target of every example of a split."""
        if isinstance(self.data, Summaries):
            return [(document.source, document.summaries[0]) for document in self.data.split(split)]
        return self.data.split(split)

    def pairs(self, split: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Source and target tokens of every pair of a split, int32."""
        if split not in self._pairs:
            sources, targets = zip(*self.texts(split), strict=True)
            end = self.tokenizer.eos_token_id
            options: dict[str, Any] = {"truncation": True, "return_attention_mask": False, "verbose": False}
            source_ids = self.tokenizer(list(sources), max_length=self.length, **options)["input_ids"]
            # With its end a target takes as many positions as the decoder reads: the start token, and all but the end.
            target_ids = self.tokenizer(
                list(targets), max_length=self.target_length - 1, add_special_tokens=False, **options
            )["input_ids"]
            self._pairs[split] = [
                (torch.tensor(a, dtype=torch.int32), torch.tensor([*b, end], dtype=torch.int32))
                for a, b in zip(source_ids, target_ids, strict=True)
            ]
        return self._pairs[split]

    def size(self, split: str) -> int:  # noqa: D102
        return len(self.pairs(split))

    def example(self, split: str, index: int, source: torch.Generator) -> Example:  # noqa: D102
        source_ids, target_ids = self.pairs(split)[index]
        return {"input_ids": source_ids.long(), "labels": target_ids.long()}

    def collate(self, examples: list[Example]) -> Batch:  # noqa: D102
        sources = [example["input_ids"] for example in examples]
        return {
            "input_ids": padded(sources, self.tokenizer.pad_token_id),
            "attention_mask": padded([torch.ones_like(source) for source in sources], 0),
            "labels": padded([example["labels"] for example in examples], IGNORED),
        }

    def config(self, **sizes: Any) -> GreenformerConfig:  # noqa: D102
        start = {"decoder_start_token_id": self.tokenizer.bos_token_id, "max_position_embeddings": self.length}
        defaults = {"decoder_layers": sizes.get("num_hidden_layers"), "sparse_prediction": True}
        return GreenformerConfig(**vocabulary(self.tokenizer) | start | defaults | sizes)

    def build(self, config: GreenformerConfig) -> PreTrainedModel:  # noqa: D102
        return GreenformerForSeq2SeqLM(config)

    def evaluate(self, model: PreTrainedModel, split: str, batch_size: int) -> dict[str, float]:
        """Mean loss in nats of a target token, and its perplexity, with teacher forcing."""
        loss = mean_loss(model, self, split, batch_size)
        return {"loss": loss, "perplexity": math.exp(min(loss, 700))}
