"""IMDB, is a film review positive? Maas et al. 2011, Large Movie Review Dataset v1.0.

It comes as a folder of files, train and test, pos and neg, one review a file; or as two tables made of them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from greenformers.data._columns import fetch_labelled
from greenformers.data._files import need, read_text
from greenformers.data._kinds import Examples, Labelled
from greenformers.data._labels import class_reader
from greenformers.data._source import choose
from greenformers.data._table import read_table

CLASSES = ("negative", "positive")
FOLDERS = ("neg", "pos")
HELD_OUT = 10
ESCAPES = {"\\": "\\", "t": "\t", "n": "\n", "r": "\r"}


def load(folder: str | Path | None, dataset: str | None = None) -> Labelled:
    """22,500 / 2,500 / 25,000 reviews, half of each positive.

    The data set has no validation split: the 10th, 20th, ... training reviews of each class, in the order of the
    source, become it, whatever seed a run has. A few reviews are in the data set twice, and may fall on both sides.

    Args:
        folder: Folder aclImdb, with {train,test}/{neg,pos}/<id>_<rating>.txt, read in the order of the ids; or one that
            holds imdb_train.tsv and imdb_test.tsv, each plain, .gz or .xz, whose header names label (0 or 1) and text.
        dataset: Data set of the `datasets` library, used instead of a folder; on the hub "stanfordnlp/imdb".

    Raises:
        ValueError: Both a folder and a dataset are given, or neither; or a file is damaged.
        OSError: The folder, a file or the dataset is missing or cannot be read.
    """
    source = choose("imdb", folder, dataset)
    if isinstance(source, str):
        data = fetch_labelled("imdb", CLASSES, source, 1, class_reader(CLASSES))
        return data if len(data.valid) else _held_out(data)
    read = _reviews if (source / "train").is_dir() or (source / "test").is_dir() else _table
    return _held_out(Labelled("imdb", CLASSES, read(source, "train"), Examples(), read(source, "test")))


def _held_out(data: Labelled) -> Labelled:
    """Move every tenth training review of each class to the validation split."""
    seen, parts = [0] * len(CLASSES), (Examples(), Examples())
    for text, label in zip(data.train.texts, data.train.labels, strict=True):
        seen[int(label)] += 1
        part = parts[seen[int(label)] % HELD_OUT == 0]
        part.texts.append(text)
        part.labels.append(int(label))
    return replace(data, train=parts[0], valid=parts[1])


def _table(folder: Path, part: str) -> Examples:
    path = need(folder, f"imdb_{part}.tsv")
    return read_table(path, ("text",), "label", class_reader(CLASSES), read_segment=_unescaped)


def _unescaped(text: str) -> str:
    r"""Undo the escapes of backslash, tab, newline and carriage return: \\ \t \n \r."""

    def character(match: re.Match[str]) -> str:
        if match[1] not in ESCAPES:
            raise ValueError(r"a backslash must be followed by \, t, n or r")
        return ESCAPES[match[1]]

    return re.sub(r"\\(.?)", character, text)


def _reviews(folder: Path, part: str) -> Examples:
    texts: list[tuple[str, ...]] = []
    labels: list[int] = []
    for label, name in enumerate(FOLDERS):
        place = folder / part / name
        paths = sorted(place.glob("*.txt"), key=_id)
        if not paths:
            raise FileNotFoundError(f"imdb needs reviews <id>_<rating>.txt, none is in folder {str(place)!r}")
        texts += [(read_text(path),) for path in paths]
        labels += [label] * len(paths)
    return Examples(texts, labels)


def _id(path: Path) -> int:
    match = re.fullmatch(r"(\d+)_\d+\.txt", path.name, re.ASCII)
    if match is None:
        raise ValueError(f"{path.parent.name}/{path.name}: reviews must be named <id>_<rating>.txt")
    return int(match[1])
