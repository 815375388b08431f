"""Text as data: running text, pairs of sentences, documents with summaries, labelled texts, sentences with tags.

Each has three splits, any of which may be empty, as a source may withhold it; `split(name)` never gives an empty one.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from typing import Generic, TypeVar

SPLITS = ("train", "valid", "test")

T = TypeVar("T", bound=Sized)


class _Split(Generic[T]):
    """Base of the kinds of text: a name and three splits."""

    name: str
    train: T
    valid: T
    test: T

    def split(self, name: str) -> T:
        """The content of a split: train, valid or test.

        Raises:
            ValueError: There is no such split, or it is empty.
        """
        if name not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {name!r}")
        content: T = getattr(self, name)
        if not len(content):
            raise ValueError(f"{self.name} has no {name} split in the folder or dataset given")
        return content


@dataclass(frozen=True, eq=False)
class Text(_Split[str]):
    """Running text, for language modelling.

    Attributes:
        name: Name of the data set, that of its file in this folder.
        train: Text to train on.
        valid: Text to validate on.
        test: Text to test on.
    """

    name: str
    train: str
    valid: str
    test: str


@dataclass(frozen=True, eq=False)
class Pairs(_Split[list[tuple[str, str]]]):
    """Sentences and their translations.

    Attributes:
        name: Name of the data set, that of its file in this folder.
        source: Language of the first sentence of a pair, a code such as "en".
        target: Language of the second sentence, alike.
        train: Pairs to train on.
        valid: Pairs to validate on.
        test: Pairs to test on.
    """

    name: str
    source: str
    target: str
    train: list[tuple[str, str]]
    valid: list[tuple[str, str]]
    test: list[tuple[str, str]]


@dataclass(frozen=True)
class Document:
    """A document and its summaries.

    Attributes:
        title: Title of the document; may be empty.
        text: Text of the document, without its title.
        summaries: Summaries by people, at least one; a model is trained on the first.
    """

    title: str
    text: str
    summaries: tuple[str, ...]

    @property
    def source(self) -> str:
        """What a model reads: title and text on either side of a bar, so that a title of one line leaves one line."""
        return f"{self.title} | {self.text}" if self.title else self.text


@dataclass(frozen=True, eq=False)
class Summaries(_Split[list[Document]]):
    """Documents and their summaries.

    Attributes:
        name: Name of the data set, that of its file in this folder.
        train: Documents to train on.
        valid: Documents to validate on.
        test: Documents to test on.
    """

    name: str
    train: list[Document]
    valid: list[Document]
    test: list[Document]


@dataclass(frozen=True, eq=False)
class Examples:
    """Texts with labels, one label a text.

    Attributes:
        texts: Texts of 1 or 2 segments each.
        labels: One label a text: a class, 0..classes - 1, or a score.
    """

    texts: list[tuple[str, ...]] = field(default_factory=list)
    labels: list[int] | list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, places: Sequence[int]) -> Examples:
        """The examples at some places."""
        return Examples([self.texts[place] for place in places], [self.labels[place] for place in places])


@dataclass(frozen=True, eq=False)
class Labelled(_Split[Examples]):
    """Texts to classify, or to score.

    Attributes:
        name: Name of the data set, that of its file in this folder.
        classes: Names of the classes that labels 0, 1, ... stand for; None where labels are scores.
        train: Examples to train on.
        valid: Examples to validate on.
        test: Examples to test on.
    """

    name: str
    classes: tuple[str, ...] | None
    train: Examples
    valid: Examples
    test: Examples


@dataclass(frozen=True, eq=False)
class Sentences:
    """Sentences with a tag for each word.

    Attributes:
        words: Words of each sentence, at least one.
        tags: Tag of each word, 0..tags - 1.
    """

    words: list[list[str]] = field(default_factory=list)
    tags: list[list[int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tags)


@dataclass(frozen=True, eq=False)
class Tagged(_Split[Sentences]):
    """Sentences whose words are to be tagged.

    Attributes:
        name: Name of the data set, that of its file in this folder.
        tags: Names of the tags 0, 1, ...: "O", and "B-x" and "I-x" for the first and further words of an entity x.
        train: Sentences to train on.
        valid: Sentences to validate on.
        test: Sentences to test on.
    """

    name: str
    tags: tuple[str, ...]
    train: Sentences
    valid: Sentences
    test: Sentences
