"""Rows of texts, one after the other: of .txt, .tsv, .jsonl, .parquet, of folders of such files, of the hub.

A row is read when it is asked for: a corpus is never held in memory, however large it is. What is held of it are the
rows that `drawn` takes, bounded in number and in bytes.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import islice
from operator import itemgetter
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, TypeVar

from greenformers._extras import needed
from greenformers.data._files import stream_lines

T = TypeVar("T")
Row = Mapping[str, object]

FORMATS = (".txt", ".tsv", ".jsonl", ".parquet", ".conll")
REFUSED = (".csv", ".json", ".arrow", ".zip", ".tar", ".safetensors")
"""Suffixes of files that are known not to be lines of text."""
LEARNT, JUDGED = ("train", "training"), ("test", "valid", "validation", "val", "dev")
"""Names of examples to train on and to judge by, of files or of folders."""
HUB = "hf:/datasets/"
"""The address of a data set of the hub, hf://datasets/NAME, once it is a path."""


class Rows(ABC):
    """The rows of one source of texts.

    Attributes:
        name: Name of the source.
        columns: Names of the columns.
        unit: What a number of `raw` counts.
        names: Names of the classes of columns that hold their numbers, where the source tells them.
        cut: Whether rows were left when they were last read to the end, as more would not fit.
    """

    name: str
    columns: tuple[str, ...]
    unit = "line"
    names: Mapping[str, Sequence[str]] = MappingProxyType({})
    cut = False

    @abstractmethod
    def raw(self) -> Iterator[tuple[int, Any]]:
        """The rows in their order, not yet read, each with its number from 1 on."""

    @abstractmethod
    def read(self, raw: Any) -> Row:
        """The fields of a row.

        Raises:
            ValueError: The row is damaged; the message never shows it.
        """

    def size(self, raw: Any) -> int:
        """Bytes of the texts of a row, about."""
        texts = (value if isinstance(value, list) else [value] for value in raw.values())
        return sum(len(text) for part in texts for text in part if isinstance(text, str))


class Lines(Rows):
    """A file .txt, one text a line; empty lines are none.

    Args:
        path: The file, plain, .gz or .xz.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.name, self.columns = path, path.name, ("text",)

    def raw(self) -> Iterator[tuple[int, bytes]]:
        return filter(lambda line: line[1].strip(), enumerate(stream_lines(self.path), 1))

    def read(self, raw: bytes) -> Row:
        return {"text": _decoded(raw).strip()}

    def size(self, raw: bytes) -> int:
        return len(raw)


class Table(Lines):
    """A file .tsv: a line a row, fields between tabs, no quoting; the first line names the columns."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.columns = tuple(_first(self, stream_lines(path), lambda line: _decoded(line).split("\t")))
        for at, name in enumerate(self.columns):  # the name may be a text, of a file without names
            if name and name in self.columns[:at]:
                raise ValueError(
                    f"{self.name}, line 1: columns {self.columns.index(name) + 1} and {at + 1} have the same name"
                )

    def raw(self) -> Iterator[tuple[int, bytes]]:
        return islice(enumerate(stream_lines(self.path), 1), 1, None)

    def read(self, raw: bytes) -> Row:
        fields = _decoded(raw).split("\t")
        if len(fields) != len(self.columns):
            raise ValueError(f"expected {len(self.columns)} fields, found {len(fields)}")
        return dict(zip(self.columns, fields, strict=True))


class Objects(Lines):
    """A file .jsonl: a JSON object a line; the first one names the columns."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.columns = tuple(_first(self, (line for _, line in self.raw()), self.read))

    def read(self, raw: bytes) -> Row:
        try:
            row = json.loads(_decoded(raw))
        except json.JSONDecodeError as error:
            raise ValueError(f"expected JSON ({error.msg})") from None
        except RecursionError:
            raise ValueError("expected JSON of fewer brackets in each other") from None
        if not isinstance(row, dict):
            raise ValueError('expected an object of JSON, as {"text": ...}')
        return row


class Sentences(Lines):
    """A file .conll: a word a line and its tag as the last field; an empty line ends a sentence.

    Fields are between tabs, or else between spaces. Lines that begin with -DOCSTART- stand between documents.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.columns = ("tokens", "tags")

    def raw(self) -> Iterator[tuple[int, list[bytes]]]:  # type: ignore[override]
        sentence, first = list[bytes](), 1
        for number, line in enumerate(stream_lines(self.path), 1):
            if line.strip() and not line.startswith(b"-DOCSTART-"):
                first = first if sentence else number
                sentence.append(line)
            elif sentence:
                yield first, sentence
                sentence = []
        if sentence:
            yield first, sentence

    def read(self, raw: list[bytes]) -> Row:  # type: ignore[override]
        lines = [_decoded(line).strip(" \t\r\n") for line in raw]
        fields = [re.split("\t+" if "\t" in line else " +", line) for line in lines]
        if not all(len(line) > 1 for line in fields):
            raise ValueError("expected a word and its tag in each line of the sentence")
        return {"tokens": [line[0] for line in fields], "tags": [line[-1] for line in fields]}

    def size(self, raw: list[bytes]) -> int:  # type: ignore[override]
        return sum(map(len, raw))


class Parquet(Rows):
    """A file .parquet, of which a batch of rows is held at a time.

    Args:
        path: The file.

    Raises:
        MissingExtraError: The package datasets, which brings pyarrow, is not installed.
    """

    unit = "row"

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name
        schema = self._opened().schema_arrow
        self.columns, self.names = tuple(schema.names), _class_names(schema.metadata or {})

    def _opened(self) -> Any:
        arrow = needed("a file .parquet", "hub", "datasets", "pyarrow")
        parquet = needed("a file .parquet", "hub", "datasets", "pyarrow.parquet")
        try:
            return parquet.ParquetFile(self.path)
        except arrow.ArrowInvalid:
            raise ValueError(f"{self.name}: expected a whole parquet file, found a damaged one or none") from None

    def raw(self) -> Iterator[tuple[int, Row]]:
        batches = self._opened().iter_batches(batch_size=1024)
        return enumerate((row for batch in batches for row in batch.to_pylist()), 1)

    def read(self, raw: Row) -> Row:
        return raw


def _class_names(metadata: Mapping[bytes, bytes]) -> dict[str, Sequence[str]]:
    """The names of the classes of columns, of lists those of their items, which `datasets` writes into a schema."""
    try:
        kinds = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    names = {}
    for column, kind in kinds.items():
        item = kind[0] if isinstance(kind, list) else kind.get("feature", kind)
        if item.get("_type") == "ClassLabel":
            names[column] = item["names"]
    return names


class Stream(Rows):
    """A split of a data set of the hub, in an order shuffled by seed, fetched as it is read.

    Args:
        name: Name of the data set and the split.
        split: A `datasets.IterableDataset`.
        most: Rows after which it ends.
        fits: Function that says whether so many rows of so many bytes in all may be read; it ends before others.
    """

    unit = "row"
    BUFFER = 10_000
    """Rows that the library holds, of which the next one is drawn."""

    def __init__(self, name: str, split: Any, most: int, fits: Callable[[int, int], bool] = lambda *_: True) -> None:
        self.name, self._split, self._most, self._fits = name, split, most, fits
        self.columns = tuple(split.column_names or next(iter(split), {}))
        kinds = {name: getattr(kind, "feature", kind) for name, kind in (split.features or {}).items()}
        self.names = {name: kind.names for name, kind in kinds.items() if getattr(kind, "names", None)}

    def raw(self) -> Iterator[tuple[int, Row]]:
        total, self.cut = 0, False
        for number, row in enumerate(self._split.shuffle(seed=0, buffer_size=self.BUFFER), 1):
            total += self.size(row)
            self.cut = number > self._most or not self._fits(number, total)
            if self.cut:
                return
            yield number, row

    def read(self, raw: Row) -> Row:
        return raw


def _decoded(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"expected UTF-8, found another byte at place {error.start}") from None


def _first(rows: Lines, lines: Iterator[bytes], read: Callable[[bytes], Iterable[str]]) -> Iterable[str]:
    """The names of the columns that the first line tells, none where there is no line."""
    first = next(lines, None)
    try:
        return () if first is None else read(first)
    except ValueError as error:
        raise ValueError(f"{rows.name}, line 1: {error}") from None


KINDS: dict[str, Callable[[Path], Rows]] = {
    ".txt": Lines, ".tsv": Table, ".jsonl": Objects, ".parquet": Parquet, ".conll": Sentences,
}  # fmt: skip


def suffix(path: Path) -> str:
    """The suffix that tells the format: .tsv of texts.tsv.gz."""
    name = path.name.lower().removesuffix(".gz").removesuffix(".xz")
    return Path(name).suffix


def of_file(path: Path) -> Rows:
    """The rows of a file; one with another suffix than those of `FORMATS` is read as lines of text.

    Raises:
        ValueError: The file is damaged, or of a format that is none of `FORMATS`.
        OSError: The file cannot be read.
    """
    if suffix(path) in REFUSED:
        raise ValueError(f"{path.name}: texts are read from {', '.join(FORMATS)}, got {suffix(path)}")
    return KINDS.get(suffix(path), Lines)(path)


def in_folder(folder: Path) -> tuple[list[Path], list[list[Path]]]:
    """The files of texts in a folder and in those below it: to learn from, and of each split to judge by.

    Where files or folders are named train, as in train.jsonl and train-00000-of-00002.parquet, their texts are those to
    learn from, and the splits to judge by are named test or, after it, valid; no other file is read. Where none is,
    every file is read, and none of them is to judge by.

    Raises:
        ValueError: There is no such file.
    """
    files = [
        path for path in sorted(folder.rglob("*"))
        if suffix(path) in FORMATS and path.is_file() and not path.name.startswith((".", "README", "LICENSE"))
    ]  # fmt: skip
    if not files:
        raise ValueError(f"{folder} is a folder without texts: no file in it is {', '.join(FORMATS)}")
    learnt, judged = (_of_splits(folder, files, names) for names in (LEARNT, JUDGED))
    return (learnt[0], judged) if learnt else (files, [])


def _of_splits(folder: Path, files: Sequence[Path], names: Sequence[str]) -> list[list[Path]]:
    """The files of each split, of these names, that is there."""
    own = {path: _split(path.relative_to(folder)) for path in files}
    splits = [[path for path in files if own[path] == name] for name in names]
    return [split for split in splits if split]


def _split(path: Path) -> str | None:
    """The split that a path is of: by the last of its parts that names one, the file itself if it does."""
    for part in reversed(path.parts):
        name = next((name for name in (*LEARNT, *JUDGED) if re.match(rf"{name}(?![a-z])", part.lower())), None)
        if name is not None:
            return name
    return None


def hub_name(path: Path) -> str | None:
    """The name NAME[:CONFIGURATION] in hf://datasets/NAME, None for any other path."""
    address = path.as_posix()
    return address.removeprefix(HUB) if address.startswith(HUB) else None


def drawn(
    rows: Iterable[T],
    most: int | None,
    seed: int = 0,
    *,
    size: Callable[[T], int] = lambda _: 0,
    fits: Callable[[int, int], bool] = lambda *_: True,
) -> tuple[list[T], int]:
    """At most so many rows, in their order, and how many there are.

    Every row has a random key, and those of the least keys are held (bottom-k sampling, Cohen & Kaplan 2007): where
    others no longer fit, the one of the largest key goes, and with it all later ones of larger keys. Every choice of so
    many rows is as likely as any other; where their bytes are bounded too, longer rows are held less often.

    Args:
        rows: Rows, read once.
        most: Largest number of rows; None for all.
        seed: Seed of the draw.
        size: Function that gives the bytes of a row.
        fits: Function that says whether so many rows of so many bytes in all may be held.
    """
    random, total, count, bound = Random(seed), 0, 0, 1.0
    held: list[tuple[float, int, T]] = []
    for count, row in enumerate(rows, 1):
        key = random.random()
        if key >= bound:
            continue
        heappush(held, (-key, count, row))
        total += size(row)
        while (most is not None and len(held) > most) or not fits(len(held), total):
            bound, _, gone = heappop(held)
            bound, total = -bound, total - size(gone)
    return [row for _, _, row in sorted(held, key=itemgetter(1))], count
