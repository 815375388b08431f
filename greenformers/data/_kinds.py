"""Text as data: running text, pairs of sentences, labelled texts.

Each has three splits, and any of them may be empty: a source may withhold it. `split(name)` never gives an empty one.
"""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass, field
from typing import Generic, TypeVar

SPLITS = ("train", "valid", "test")

T = TypeVar("T", bound=Sized)


class _Split(Generic[T]):
    """What the kinds share: a name and three splits."""

    name: str
    train: T
    valid: T
    test: T

    def split(self, name: str) -> T:
        """The content of a split: train, valid or test.

        Raises:
            ValueError: no such split, or an empty one.
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
        name: the file of this folder it came from.
        train: text to learn from.
        valid: text to choose by.
        test: text to score on.
    """

    name: str
    train: str
    valid: str
    test: str


@dataclass(frozen=True, eq=False)
class Pairs(_Split[list[tuple[str, str]]]):
    """Sentences and their translations.

    Attributes:
        name: the file of this folder it came from.
        source: language of the first of a pair, a code as "en".
        target: language of the second.
        train: pairs to learn from.
        valid: pairs to choose by.
        test: pairs to score on.
    """

    name: str
    source: str
    target: str
    train: list[tuple[str, str]]
    valid: list[tuple[str, str]]
    test: list[tuple[str, str]]


@dataclass(frozen=True, eq=False)
class Examples:
    """Texts with labels, one label a text.

    Attributes:
        texts: n texts of 1 or 2 segments each.
        labels: n classes, 0..classes - 1, or n scores.
    """

    texts: list[tuple[str, ...]] = field(default_factory=list)
    labels: list[int] | list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Labelled(_Split[Examples]):
    """Texts to classify, or to score.

    Attributes:
        name: the file of this folder it came from.
        classes: what label 0, 1, ... stands for; None where labels are scores.
        train: examples to learn from.
        valid: examples to choose by.
        test: examples to score on.
    """

    name: str
    classes: tuple[str, ...] | None
    train: Examples
    valid: Examples
    test: Examples
