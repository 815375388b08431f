"""Are two passages of one article? Pairs of WikiText-2 (Merity et al. 2016, arXiv:1609.07843) of which half are.

It stands in for the retrieval of Long Range Arena (Tay et al. 2021, arXiv:2011.04006), pairs of papers of 4,000 bytes
of which one may cite the other; and is easier, as the words that two long passages share tell most pairs. Articles
begin at headings, " = Title = " between empty lines; each of the three splits has its own.

Of an article with B bytes below its heading and passages of L, two cuts a <= b are drawn from 0..B - 2 L, and its
passages are bytes a..a + L and b + L..b + 2 L, which never overlap. A pair is the first passage of an article and the
second of the same or of another, in either order, so that their places tell nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from greenformers.data import wikitext2
from greenformers.data._kinds import SPLITS, Examples, Labelled, Text

CLASSES = ("different", "same")
HEADING = re.compile(r"\n ?\n = (?!= )[^\n]+(?<! =) = \n ?\n")


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
    return [article.encode() for article in HEADING.split(f"\n{text}")[1:]]


def _pairs(source: np.random.Generator, long: list[bytes], length: int, size: int) -> Examples:
    if not size:
        return Examples()
    labels = source.permutation(np.arange(size) % len(CLASSES)).tolist()
    first = source.integers(len(long), size=size)
    another = (first + source.integers(1, len(long), size=size)) % len(long)
    texts: list[tuple[str, ...]] = []
    rows = zip(labels, first.tolist(), another.tolist(), source.random((size, 5)).tolist(), strict=True)
    for label, article, partner, (turned, *shares) in rows:
        # The cuts of the second article are drawn whether it is another or not.
        begin, end = _cuts(long[article], length, shares[:2])
        other = long[article] if label else long[partner]
        if not label:
            _, end = _cuts(other, length, shares[2:])
        pair = _passage(long[article], begin, length), _passage(other, end + length, length)
        texts.append(pair if turned < 0.5 else pair[::-1])
    return Examples(texts, labels)


def _cuts(article: bytes, length: int, shares: list[float]) -> list[int]:
    """Two cuts, in order, at shares of 0..1 of the places that they may have."""
    return sorted(int(share * (len(article) - 2 * length + 1)) for share in shares)


def _passage(article: bytes, begin: int, length: int) -> str:
    return article[begin : begin + length].decode(errors="ignore")
