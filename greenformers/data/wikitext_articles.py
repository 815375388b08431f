"""The first section of an article from the rest of it: WikiText-2 (Merity et al. 2016, arXiv:1609.07843).

The section above the first heading of a Wikipedia article sums the article up. It stands in for the long documents of
BigBird's summaries (Zaheer 2020, arXiv:2007.14062, table 4: papers and patents): a split has articles of its own, and
an article is in one split. Words are those of WikiText-2, rare ones <unk>, which count as a word that matches itself.
"""

from __future__ import annotations

import re
from pathlib import Path

from greenformers.data import wikitext2
from greenformers.data._kinds import SPLITS, Document, Summaries, Text
from greenformers.data.same_article import HEADING

SECTION = re.compile(r"^ ?(?:= ){2,}[^\n]+(?: =){2,} ?$", re.MULTILINE)
WORDS = 4_096


def load(folder: str | Path | None, dataset: str | None = None) -> Summaries:
    """Articles of several sections: title and at most 4,096 words of the sections behind the first, and the first.

    Args:
        folder: Folder of WikiText-2, see `wikitext2`.
        dataset: Data set of the `datasets` library, used instead of a folder, see `wikitext2`.

    Raises:
        ValueError: As `wikitext2` raises it.
        OSError: The folder, a file or the dataset is missing or cannot be read.
    """
    return generate(wikitext2.load(folder, dataset))


def generate(text: Text, *, words: int = WORDS) -> Summaries:
    """Cut articles into a document, the sections behind the first one, and its summary, the first section.

    Args:
        text: Articles below headings, as in WikiText-2; each split gives documents of its own articles. Articles of
            one section are left out.
        words: Most words of a document; the rest of a longer one is dropped. Summaries are whole.

    Raises:
        ValueError: `words` is below 1.
    """
    if words < 1:
        raise ValueError(f"words must be at least 1, got {words}")
    return Summaries("wikitext_articles", *(_documents(getattr(text, part), words) for part in SPLITS))


def _documents(text: str, words: int) -> list[Document]:
    text = f"\n{text}"
    headings = list(HEADING.finditer(text))
    ends = [*(heading.start() for heading in headings), len(text)][1:]
    documents = []
    for heading, end in zip(headings, ends, strict=True):
        first, *others = (_paragraphs(section) for section in SECTION.split(text[heading.end() : end]))
        rest = _cut([paragraph for section in others for paragraph in section], words)
        if first and rest:
            title = heading.group().strip().removeprefix("=").removesuffix("=").strip()
            documents.append(Document(title, rest, (" ".join(first),)))
    return documents


def _paragraphs(section: str) -> list[str]:
    return [" ".join(line.split()) for line in section.split("\n") if line.strip()]


def _cut(paragraphs: list[str], words: int) -> str:
    """The paragraphs, a line each, up to so many words."""
    lines = []
    for paragraph in paragraphs:
        parts = paragraph.split(" ")[:words]
        words -= len(parts)
        if parts:
            lines.append(" ".join(parts))
    return "\n".join(lines)
