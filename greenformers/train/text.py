"""Running text as blocks of tokens, for the objectives of language modelling."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from greenformers.data import Text
from greenformers.measure.quality import NotANumberError, evaluating
from greenformers.model import GreenformerConfig
from greenformers.model.memory import SegmentMemory
from greenformers.train.objective import Batch, Example, Objective
from greenformers.train.stream import Numbered

AT_ONCE = 10_000
"""Lines that are tokenized at once: of a token a tokenizer holds about 200 bytes, of which its number takes 4."""


class LanguageModelling(Objective):
    """Blocks of `length` tokens, cut one after the other from a running text; the remainder at its end is dropped.

    Args:
        data: Running text.
        tokenizer: Tokenizer of the text.
        length: Length of a block, in tokens.

    Raises:
        ValueError: The length is out of range, or longer than a split.
    """

    metric = "perplexity"
    greater_is_better = False
    markers: ClassVar[int] = 0
    """Number of special tokens in a block."""

    def __init__(self, data: Text, tokenizer: PreTrainedTokenizerFast, length: int) -> None:
        if length < self.markers + 2:
            raise ValueError(f"length must be at least {self.markers + 2}, got {length}")
        self.data, self.tokenizer, self.length = data, tokenizer, length
        self._blocks: dict[str, Tensor] = {}

    def blocks(self, split: str) -> Tensor:
        """The tokens of a split in blocks (n, length - markers), int32."""
        if split not in self._blocks:
            ids = encoded(self.tokenizer, self.data.split(split))
            width = self.length - self.markers
            if len(ids) < width:
                raise ValueError(
                    f"length must be at most {len(ids) + self.markers}, the {split} tokens, got {self.length}"
                )
            self._blocks[split] = ids[: len(ids) // width * width].view(-1, width)
        return self._blocks[split]

    def size(self, split: str) -> int:  # noqa: D102
        return len(self.blocks(split))

    def config(self, **sizes: Any) -> GreenformerConfig:  # noqa: D102
        return GreenformerConfig(**vocabulary(self.tokenizer), max_position_embeddings=self.length, **sizes)

    def collate(self, examples: list[Example]) -> Batch:  # noqa: D102
        return {name: torch.stack([example[name] for example in examples]) for name in examples[0]}

    def evaluate(self, model: PreTrainedModel, split: str, batch_size: int) -> dict[str, float]:
        """Mean loss in nats of a predicted token, and its perplexity, which is comparable within one tokenizer only."""
        loss = mean_loss(model, self, split, batch_size)
        return {"loss": loss, "perplexity": math.exp(min(loss, 700))}


def encoded(tokenizer: PreTrainedTokenizerFast, text: str) -> Tensor:
    """The tokens of a text (n,) int32, without special tokens. The text is cut at line ends, as long ones are slow."""
    lines = text.splitlines(keepends=True)
    parts = [torch.empty(0, dtype=torch.int32)]
    for start in range(0, len(lines), AT_ONCE):
        rows = tokenizer(
            lines[start : start + AT_ONCE], add_special_tokens=False, return_attention_mask=False, verbose=False
        )["input_ids"]
        parts.append(torch.tensor([token for row in rows for token in row], dtype=torch.int32))
    return torch.cat(parts)


def vocabulary(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Arguments of a configuration that depend on the tokenizer."""
    return {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }


def mean_loss(
    model: PreTrainedModel, objective: Objective, split: str, batch_size: int, memory: int | None = None
) -> float:
    """Mean loss in nats of a labelled token over a whole split, whatever the batch size.

    With a segment memory the split is read from its beginning to its end, a block at a time: of several rows each would
    begin without a memory, and the loss would depend on how many there are.

    Args:
        model: A model that the objective has built.
        objective: Objective with the split.
        split: "train", "valid" or "test".
        batch_size: Number of examples computed at a time.
        memory: Positions that the segment memory holds; by default as many as in training.

    Raises:
        NotANumberError: The loss is nan.
    """
    memory = objective.memory if memory is None else memory
    total = torch.zeros((), dtype=torch.float64)
    count = 0
    loader: DataLoader[Example] = DataLoader(
        Numbered(objective, split), batch_size=1 if memory else batch_size, collate_fn=objective.collate
    )
    device = next(model.parameters()).device
    held = SegmentMemory(memory) if memory else None
    with evaluating(model), torch.no_grad():
        for batch in loader:
            batch = {name: value.to(device) for name, value in batch.items()}
            if held is None:
                out = model(**batch, num_items_in_batch=1)
            else:
                out = model(**batch, num_items_in_batch=1, memory=held)
                held = out.memory
            total += out.loss.cpu()
            count += objective.scored(batch)
    if total.isnan():
        raise NotANumberError("losses must be numbers, got nan")
    return total.item() / count
