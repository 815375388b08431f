"""Texts for calibration and evaluation, and batches of their token ids."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from greenformers.data._tasks import Task

LabelKind = Literal["class", "score", "tags", "answers"]


@dataclass(frozen=True)
class Texts:
    """The texts of a source.

    Attributes:
        name: Name of the source.
        segments: The text of each example, or its two texts.
        labels: Label of each example, where the source has labels: a number; or a list, of the tags of its words or of
            answers, none where the text tells none.
        label_kind: What the labels are: classes, scores, tags of words between which there is one space, or answers to
            the question that is the first text, of which the second one tells the answer.
        translated: Whether the second text of an example is the target of an encoder-decoder.
    """

    name: str
    segments: list[tuple[str, ...]]
    labels: list[Any] | None = None
    label_kind: LabelKind = "class"
    translated: bool = False

    def __len__(self) -> int:
        return len(self.segments)

    @property
    def paired(self) -> bool:
        """Whether an example has two texts, of which neither is the target of the other."""
        return len(self.segments[0]) == 2 and not self.translated

    @property
    def lines(self) -> list[str]:
        """The texts of all examples, one after another."""
        return [text for example in self.segments for text in example]

    def at(self, places: Sequence[int]) -> "Texts":
        """The examples at some places."""
        labels = None if self.labels is None else [self.labels[place] for place in places]
        return replace(self, segments=[self.segments[place] for place in places], labels=labels)


def batches(
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    length: int,
    size: int | None = None,
) -> list[dict[str, Tensor]]:
    """Batches without padding: blocks of running text for a causal language model, else texts of equal length.

    Args:
        texts: The texts, any number of them.
        tokenizer: Tokenizer of the model.
        task: Task of the model.
        length: Length of a block, or of the longest text, in tokens.
        size: Most texts in a batch; by default 16, of short texts as many as have 2,048 tokens, and of texts longer
            than 512 tokens as many as have 8,192.

    Raises:
        ValueError: There is too little text for one block.
    """
    if task == "causal_lm":
        first = beginning(tokenizer) if length > 1 else []
        ids, room = list(_running(texts, tokenizer)), length - len(first)
        blocks = [[*first, *ids[start : start + room]] for start in range(0, len(ids) - room + 1, room)]
        if not blocks:
            raise _too_short(len(ids), length)
        size = _size(length) if size is None else size
        return [_stacked(blocks[start : start + size]) for start in range(0, len(blocks), size)]
    by_length: dict[int, list[list[int]]] = {}
    for text in texts:
        ids = tokenizer(text, truncation=True, max_length=length)["input_ids"]
        if ids:
            by_length.setdefault(len(ids), []).append(ids)
    if not by_length:
        raise ValueError("the text has no token that the model knows")
    return [
        _stacked(rows[start : start + most])
        for tokens, rows in sorted(by_length.items())
        for most in [_size(tokens) if size is None else size]
        for start in range(0, len(rows), most)
    ]


def check_block(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, length: int) -> None:
    """Check that texts have a block of running text for a causal language model.

    Raises:
        ValueError: There is too little text for one.
    """
    room = length - (len(beginning(tokenizer)) if length > 1 else 0)
    count = sum(1 for _ in islice(_running(texts, tokenizer), room))
    if count < room:
        raise _too_short(count, length)


def beginning(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """What a tokenizer puts before every text, without which models such as Gemma foresee nothing; not a [CLS]."""
    first: int | None = tokenizer.bos_token_id
    if first is None or first == tokenizer.cls_token_id or tokenizer("")["input_ids"][:1] != [first]:
        return []
    return [first]


def _running(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> Iterator[int]:
    """The tokens of texts one after the other."""
    return (token for text in texts for token in tokenizer(text + "\n", add_special_tokens=False)["input_ids"])


def _too_short(tokens: int, length: int) -> ValueError:
    return ValueError(f"the text has {tokens} tokens; one block of {length} is needed")


def _size(tokens: int) -> int:
    """Number of texts of so many tokens in a batch: a pass takes as long for few tokens as for somewhat more.

    Of long ones a language model's scores of the vocabulary take much memory.
    """
    return max(1, min(max(16, 2048 // tokens), 8192 // tokens))


def _stacked(rows: list[list[int]]) -> dict[str, Tensor]:
    return {"input_ids": torch.tensor(rows)}


def padded(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, length: int, size: int
) -> list[tuple[list[int], Any]]:
    """Batches of texts of similar length, padded: (indices of the texts, batch)."""
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    pairs = []
    for start in range(0, len(order), size):
        places = order[start : start + size]
        batch = tokenizer(
            [texts[place] for place in places], truncation=True, max_length=length, padding=True, return_tensors="pt"
        )
        pairs.append((places, dict(batch)))
    return pairs
