"""Inputs of the tasks as ids: texts by a tokenizer of words or bytes, images as a [CLS] and the bytes of their pixels.

Texts are [CLS] a [SEP], pairs [CLS] a [SEP] b [SEP]. An image is [CLS] and its N pixels, each an id as byte 0..255 has,
so that black is an id like any other; nothing is padded.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from greenformers.data import Labelled, Splits, train_tokenizer
from greenformers.data._draw import stratified
from greenformers.data._kinds import Examples

SEED = 0
"""Seed of the choice of examples, the same for every cell."""

Most = Mapping[str, int | None]
"""Most examples of each split; None for all."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """Sequences and their labels.

    Attributes:
        data: Labels of every split, with the names of the classes; texts too, where there are any.
        rows: Ids of every sequence of a split, int32.
        tokenizer: Tokenizer of the ids.
        length: Longest sequence, special tokens included.
    """

    data: Labelled
    rows: dict[str, list[Tensor]]
    tokenizer: PreTrainedTokenizerFast
    length: int

    def labels(self, split: str) -> Tensor:
        """The classes (n,) of a split, int64."""
        return torch.tensor(self.data.split(split).labels, dtype=torch.long)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.data.classes or ())

    def special(self, row: Tensor) -> Tensor:
        """Which ids (N,) are no token of the input: [CLS] and [SEP], booleans."""
        marks = torch.tensor([self.tokenizer.cls_token_id, self.tokenizer.sep_token_id])
        return torch.isin(row, marks)


def of_texts(data: Labelled, kind: str, length: int, most: Most) -> Inputs:
    """Texts as ids, cut to a length.

    Args:
        data: Labelled texts, of one segment or of two.
        kind: Kind of tokenizer, which is made of the training texts.
        length: Longest sequence.
        most: Most examples of each split.

    Raises:
        ValueError: A split is empty.
    """
    splits = {name: _chosen(data.split(name), most[name]) for name in most}
    words = (segment for segments in splits["train"].texts for segment in segments)
    tokenizer = train_tokenizer(kind, words, max_length=length)
    rows = {}
    for name, split in splits.items():
        # A character is at least a byte: what is cut off here would be cut off there, in more time.
        room = length if kind == "bytes" else None
        segments = ([text[:room] for text in texts] for texts in zip(*split.texts, strict=True))
        ids = tokenizer(
            *segments, truncation=True, max_length=length, return_attention_mask=False, verbose=False
        )["input_ids"]  # fmt: skip
        rows[name] = [torch.tensor(row, dtype=torch.int32) for row in ids]
    return Inputs(Labelled(data.name, data.classes, **splits), rows, tokenizer, length)


def of_images(data: Splits, kind: str, length: int, most: Most) -> Inputs:
    """Images as ids of pixels.

    Args:
        data: Images with a validation split.
        kind: Kind of tokenizer, that of bytes.
        length: Length of a sequence, the pixels and [CLS].
        most: Most examples of each split.

    Raises:
        ValueError: The images are of another length, or without a validation split.
    """
    if data.length + 1 != length:
        raise ValueError(f"images must have {length - 1} pixels, got {data.length}")
    if data.valid is None:
        raise ValueError(f"{data.name} must have a validation split, which the test split never is; it has none")
    tokenizer = train_tokenizer(kind, [" "], max_length=length)
    first = len(tokenizer) - 256  # the id of byte 0
    labels, rows = {}, {}
    for name, split in (("train", data.train), ("valid", data.valid), ("test", data.test)):
        places = _places(split.labels, most[name])
        # Averages of pixels are stored as sums, of a larger peak.
        bytes_ = (split.pixels[places].double() * (255 / split.peak)).round().int()
        marks = torch.full((len(places), 1), tokenizer.cls_token_id, dtype=torch.int32)
        rows[name] = list(torch.cat([marks, bytes_ + first], 1))
        labels[name] = Examples([], split.labels[places].tolist())
    classes = tuple(map(str, range(data.classes)))
    return Inputs(Labelled(data.name, classes, **labels), rows, tokenizer, length)


def _places(labels: Tensor, most: int | None) -> Tensor:
    """Places of at most so many examples, in the proportions of the classes."""
    if most is None or most >= len(labels):
        return torch.arange(len(labels))
    return stratified(labels, most, SEED)


def _chosen(split: Examples, most: int | None) -> Examples:
    places = _places(torch.tensor(split.labels, dtype=torch.long), most).tolist()
    return split.at(places)
