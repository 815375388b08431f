"""SciTLDR, papers in one sentence: Cachola, Lo, Cohan, Weld 2020, arXiv:2004.15011. Abstracts alone, "SciTLDR-A".

The summary of an author is the first of each paper; others were written from reviews of the paper. A summary is scored
by the one of them that it is closest to, see `greenformers.measure.summaries.rouge`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from greenformers.data._files import find, need
from greenformers.data._hub import fetch
from greenformers.data._kinds import Document, Summaries
from greenformers.data._labels import score_reader
from greenformers.data._source import choose
from greenformers.data._table import read_table

COLUMNS = ("title", "abstract", "summaries")
BETWEEN = " ||| "
"""What stands between the summaries of a paper in a table."""


def load(folder: str | Path | None, dataset: str | None = None) -> Summaries:
    """1,992 / 619 / 618 papers with 1, 2.3 and 3.2 summaries each: title and abstract, 159 words on average.

    Args:
        folder: Folder that holds scitldr_train.tsv, scitldr_dev.tsv and, or there are no papers to test on,
            scitldr_test.tsv, each plain, .gz or .xz; the header names title, abstract and summaries among others, and
            " ||| " stands between the summaries of a paper.
        dataset: Data set of the `datasets` library, used instead of a folder: the columns source (sentences) and target
            (summaries), and title where there are titles; "allenai/scitldr:Abstract" on the hub.

    Raises:
        ValueError: Both a folder and a dataset are given, or neither; or a file is damaged; or a paper has no summary.
        OSError: The folder, a file or the dataset is missing or cannot be read.
    """
    source = choose("scitldr", folder, dataset)
    if isinstance(source, str):
        return _fetched(source)
    test = find(source, "scitldr_test.tsv")
    train, valid = (_read(need(source, f"scitldr_{part}.tsv")) for part in ("train", "dev"))
    return Summaries("scitldr", train, valid, [] if test is None else _read(test))


def _read(path: Path) -> list[Document]:
    documents = []
    rows = read_table(path, COLUMNS, None, score_reader(0, 1)).texts  # without labels, the reader is not called
    for number, (title, abstract, joined) in enumerate(rows, start=2):
        summaries = tuple(summary.strip() for summary in joined.split(BETWEEN) if summary.strip())
        if not summaries:
            raise ValueError(f"{path.name}, line {number}: there must be a summary, found none")
        documents.append(Document(title.strip(), abstract.strip(), summaries))
    return documents


def _fetched(dataset: str) -> Summaries:
    splits: dict[str, list[Document]] = {"train": [], "valid": [], "test": []}
    for part, split in fetch(dataset).items():
        where, names = f"{dataset}, {part}", split.column_names
        if not {"source", "target"} <= set(names):
            raise ValueError(f"{where}: columns must include source+target, found {', '.join(names)}")
        titles = list(split["title"]) if "title" in names else [""] * len(split)
        for number, (title, *lists) in enumerate(zip(titles, split["source"], split["target"], strict=True)):
            sentences, summaries = (_texts(f"{where}, row {number}", texts) for texts in lists)
            if not summaries:
                raise ValueError(f"{where}, row {number}: there must be a summary, found none")
            splits[part].append(Document((title or "").strip(), " ".join(sentences), tuple(summaries)))
    return Summaries("scitldr", **splits)


def _texts(where: str, texts: Any) -> list[str]:
    """The texts of a row, without white space around them and without empty ones."""
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{where}: expected a list of texts, found {type(texts).__name__}")
    return [text.strip() for text in texts if text.strip()]
