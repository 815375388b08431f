"""Texts for calibration and evaluation: from a file to batches of token ids."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from greenformers.data._files import read_lines
from greenformers.data._labels import score_reader
from greenformers.data._table import read_table
from greenformers.data._tasks import Task


@dataclass(frozen=True)
class Texts:
    """The texts of a file.

    Attributes:
        name: Name of the file.
        segments: The text of each example, or its two texts.
        labels: Label of each example, where the file has labels.
        translated: Whether the second text of an example is the target of an encoder-decoder.
    """

    name: str
    segments: list[tuple[str, ...]]
    labels: list[float] | None = None
    translated: bool = False

    def __len__(self) -> int:
        return len(self.segments)

    @property
    def lines(self) -> list[str]:
        """The texts of all examples, one after another."""
        return [text for example in self.segments for text in example]

    def at(self, places: Sequence[int]) -> "Texts":
        """The examples at some places."""
        labels = None if self.labels is None else [self.labels[place] for place in places]
        return replace(self, segments=[self.segments[place] for place in places], labels=labels)


def read_texts(path: Path) -> Texts:
    """A text file, one text a line; or a table with the extension .tsv (.tsv.gz, .tsv.xz) and a header.

    The header names sentence1, sentence2 and score (pairs and how alike they are), sentence and label (a class as a
    whole number), or source and target (the texts that an encoder-decoder reads and writes).

    Raises:
        ValueError: The file holds no text, or a damaged table.
        OSError: The file cannot be read.
    """
    suffixes = "".join(path.suffixes[-2:])
    if ".tsv" in suffixes:
        header = read_lines(path)[:1]
        columns = header[0].split("\t") if header else []
        texts = _table(path, columns)
    else:
        texts = Texts(path.name, [(line.strip(),) for line in read_lines(path) if line.strip()])
    if not texts.segments:
        raise ValueError(f"{path.name} holds no text")
    return texts


def _table(path: Path, columns: Sequence[str]) -> Texts:
    """The examples of a table, by what its header names."""
    if {"source", "target"} <= set(columns):
        rows = read_table(path, ("source", "target"), None, lambda _: 0)
        return Texts(path.name, [tuple(row) for row in rows.texts], translated=True)
    pairs = {"sentence1", "sentence2", "score"} <= set(columns)
    if not pairs and not {"sentence", "label"} <= set(columns):
        raise ValueError(
            f"{path.name}, line 1: the header must name sentence1, sentence2, score; sentence, label; or source, target"
        )
    rows = read_table(
        path,
        ("sentence1", "sentence2") if pairs else ("sentence",),
        "score" if pairs else "label",
        score_reader(-1e9, 1e9) if pairs else _class,
    )
    return Texts(path.name, [tuple(row) for row in rows.texts], list(rows.labels))


def _class(value: object) -> int:
    if not str(value).isdecimal():
        raise ValueError("the label must be a whole number from 0 on")
    return int(str(value))


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
        size: Most texts in a batch; by default 16, or of short texts as many as have 2,048 tokens.

    Raises:
        ValueError: There is too little text for one block.
    """
    if task == "causal_lm":
        ids = [token for text in texts for token in tokenizer(text + "\n", add_special_tokens=False)["input_ids"]]
        blocks = [ids[start : start + length] for start in range(0, len(ids) - length + 1, length)]
        if not blocks:
            raise ValueError(f"the text has {len(ids)} tokens; one block of {length} is needed")
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


def _size(tokens: int) -> int:
    """Number of texts of so many tokens in a batch: a pass takes as long for few tokens as for somewhat more."""
    return max(16, 2048 // tokens)


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
