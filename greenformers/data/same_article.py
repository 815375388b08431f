"""Are two passages of one article? Pairs of WikiText-2 (Merity et al. 2016, arXiv:1609.07843) of which half are.

It stands in for the retrieval of Long Range Arena (Tay et al. 2021, arXiv:2011.04006), pairs of papers of 4,000 bytes, one
of which may cite the other. Articles begin at their headings, " = Title = " between empty lines; those of the three
splits are others. Of an article with B bytes below its heading and passages of L, two cuts a <= b are drawn from
0..B - 2 L, and its passages are bytes a..a + L and b + L..b + 2 L, which never overlap. A pair takes the first passage of
one article and the second of the same or of another, in either order, so that their places tell nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from greenformers.data import wikitext2
from greenformers.data._kinds import SPLITS, Examples, Labelled, Text

CLASSES = ("different", "same")
HEADING = re.compile(r"(?:^|(?<=\n)) ?\n = (?!= )[^\n]+(?<! =) = \n ?\n")


def load(folder: str | Path | None, dataset: str | None = None) -> Labelled:
    """10,000 / 1,000 / 1,000 pairs of passages of 4,000 bytes, half of them of one article.

    `--tokenizer bytes --length 8003` reads them whole; at a smaller length both are cut alike.

    Args:
        folder: Folder of WikiText-2, see `wikitext2`.
        dataset: Data set of the `datasets` library, used instead of a folder, see `wikitext2`.

    Raises:
        ValueError: As `wikitext2` raises it; or a split has fewer than two articles that are long enough.
        OSError: The folder, a file or the dataset is missing or cannot be read.
    """
    return generate(wikitext2.load(folder, dataset))


def generate(
    text: Text, *, length: int = 4_000, train: int = 10_000, valid: int = 1_000, test: int = 1_000, seed: int = 0
) -> Labelled:
    """Draw pairs of passages, half of them of one article.

    Args:
        text: Articles below headings, as in WikiText-2; each split gives pairs of its own articles.
        length: Length of a passage in bytes, to which a character that a cut divides is lost; at least 1. Articles of
            fewer than twice as many bytes are left out.
        train: Number of pairs to train on.
        valid: Number of pairs to validate on.
        test: Number of pairs to test on.
        seed: Seed of the draw.

    Raises:
        ValueError: An argument is out of its range, or a split has fewer than two articles that are long enough.
    """
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length}")
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    source = np.random.default_rng(seed)
    splits = []
    for part, size in zip(SPLITS, (train, valid, test), strict=True):
        if size < 0:
            raise ValueError(f"{part} must be at least 0, got {size}")
        long = [article for article in articles(getattr(text, part)) if len(article) >= 2 * length]
        if size and len(long) < 2:
            raise ValueError(f"{part} must have 2 articles of at least {2 * length} bytes, found {len(long)}")
        splits.append(_pairs(source, long, length, size))
    return Labelled("same_article", CLASSES, *splits)


def articles(text: str) -> list[bytes]:
    """The articles of a text as UTF-8, each without its heading."""
    return [article.encode() for article in HEADING.split(text)[1:]]


def _pairs(source: np.random.Generator, long: list[bytes], length: int, size: int) -> Examples:
    texts: list[tuple[str, ...]] = []
    labels = source.permutation(np.arange(size) % len(CLASSES)).tolist()
    for label in labels:
        article, another = (long[place] for place in source.choice(len(long), 2, replace=False))
        other = article if label else another
        first, second = _cuts(source, article, length)
        if not label:
            _, second = _cuts(source, other, length)
        passages = [_passage(article, first, length), _passage(other, second + length, length)]
        texts.append(tuple(passages if source.random() < 0.5 else passages[::-1]))
    return Examples(texts, labels)


def _cuts(source: np.random.Generator, article: bytes, length: int) -> list[int]:
    return sorted(source.integers(len(article) - 2 * length + 1, size=2).tolist())


def _passage(article: bytes, begin: int, length: int) -> str:
    return article[begin : begin + length].decode(errors="ignore")
