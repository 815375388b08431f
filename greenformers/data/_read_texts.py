"""Texts of a file, a folder or a data set of the hub, and what is known about them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from greenformers.data._hub import streamed
from greenformers.data._labels import score_reader
from greenformers.data._text_files import Row, Rows, Stream, drawn, hub_name, in_folder, of_file
from greenformers.data._texts import LabelKind, Texts

NO_NAMES: Mapping[str, int] = MappingProxyType({})
"""Classes of which numbers alone are known."""
MOST = 200_000
"""Texts of a source that are held at most; of more, so many are drawn."""
LARGEST = 2**28
"""Bytes of a source that are held at most."""
ENOUGH = 2**24
"""Bytes that are held at most beyond the number of texts that is enough, where one is named."""


@dataclass(frozen=True)
class Bounds:
    """How much of a source is held.

    Attributes:
        texts: Largest number of texts; None for all of them, however many bytes they have.
        enough: Number of texts that are of use; beyond them no more than `ENOUGH` bytes are held. None for all.
    """

    texts: int | None
    enough: int | None = None

    def fit(self, texts: int, size: int) -> bool:
        """Whether so many texts of so many bytes in all may be held; a single one always may."""
        if self.texts is None or texts == 1:
            return True
        enough = self.texts if self.enough is None else self.enough
        return texts <= self.texts and size <= LARGEST and (texts <= enough or size <= ENOUGH)

    def lacking(self, texts: int) -> bool:
        """Whether so many texts, of a source that has more, are fewer than are of use: their bytes decided."""
        return self.texts is not None and texts < min(self.texts, self.enough or self.texts)


@dataclass(frozen=True)
class _Columns:
    """Columns of texts and of what is known about them."""

    segments: tuple[str, ...]
    label: str | None = None
    translated: bool = False
    label_kind: LabelKind = "class"

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.segments, *(() if self.label is None else (self.label,)))


PLAIN = _Columns(("text",))

PAIRS = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question", "sentence"), ("question1", "question2"),
    ("question", "passage"), ("question", "context"), ("query", "passage"),
)  # fmt: skip
"""Columns of pairs of texts, in the order in which a model reads the two."""

ASKED = ("question", "context")
"""Columns of a question and of the text that tells its answer."""

TAGS = ("ner_tags", "tags", "labels")

COLUMNS = (
    _Columns(("source", "target"), translated=True),
    *(_Columns(("tokens",), tags, label_kind="tags") for tags in TAGS),
    *(_Columns(ASKED, answers, label_kind="answers") for answers in ("answers", "answer")),
    *(_Columns(pair, "score", label_kind="score") for pair in PAIRS),
    *(_Columns(pair, "label") for pair in PAIRS),
    _Columns(("sentence",), "label"),
    _Columns(("text",), "label"),
    PLAIN,
    *(_Columns(pair) for pair in PAIRS),
)
"""What a source of texts may hold; the first whose columns are all there is read, and further columns are not."""

SECOND = ("text_pair", *(name for pair in PAIRS for name in pair))
"""Columns of texts beside which another is half of what a class is of."""


def read_texts(
    path: Path, enough: int | None = None, *, labelled: bool = True, classes: Mapping[str, int] = NO_NAMES
) -> tuple[Texts, Texts | None]:
    """Texts to learn from, and texts to judge by where the source has a split of its own for them.

    The source is a file .txt with one text a line; a table .tsv with a header; .jsonl with an object a line (all of
    them plain, .gz or .xz); .parquet; a folder of such files, see `in_folder`; or hf://datasets/NAME[:CONFIGURATION], a
    data set of the hub, which is fetched row by row in an order shuffled by seed, until there are as many as are held.

    Columns are text alone; sentence or text, and label (a class, by its name or as a whole number); a pair of `PAIRS`,
    such as sentence1 and sentence2, with score (how alike they are, say), label or neither; tokens (words, a list) and
    a list of their tags, ner_tags, tags or labels; question, context and answers, as SQuAD has them, or one answer; or
    source and target (the texts that an encoder-decoder reads and writes). Of more than `MOST` texts, or of more than
    `LARGEST` bytes, so many are drawn, always the same; the name says so. All are as likely where their number decides,
    longer ones less so where their bytes do.

    Args:
        path: The source.
        enough: Number of texts that the caller takes at most; of a source of more than `ENOUGH` bytes no more than so
            many texts, or bytes, are held. None where all are of use.
        labelled: Whether labels are read, where there are some.
        classes: Number of each class, by its name.

    Raises:
        ValueError: The source holds no text, or is damaged; the message never shows a text.
        OSError: It cannot be read.
    """
    name, bounds = hub_name(path), Bounds(MOST, enough)
    if name is not None:
        return _of_hub(name, bounds, labelled, classes)
    if not path.is_dir():
        return _read(path.name, [of_file(path)], bounds, labelled, classes), None
    learnt, judged = in_folder(path)
    texts = _read(path.name, [of_file(file) for file in learnt], bounds, labelled, classes)
    splits = ([of_file(file) for file in files] for files in judged)
    # A test split may withhold its labels; the validation split then judges.
    kind = _kind(of_file(learnt[0]), labelled)
    others = next((files for files in splits if _shown(files, kind.label)), None)
    if others is None:
        return texts, None
    return texts, _read(f"{path.name}, to judge by", others, bounds, labelled, classes)


def every_text(path: Path) -> Texts:
    """All texts of a file, however many.

    Raises:
        ValueError: The file holds no text, or is damaged; the message never shows a text.
        OSError: It cannot be read.
    """
    return _read(path.name, [of_file(path)], Bounds(None))


def _of_hub(name: str, bounds: Bounds, labelled: bool, classes: Mapping[str, int]) -> tuple[Texts, Texts | None]:
    splits = {part: Stream(f"{name} {part}", split, MOST, bounds.fit) for part, split in streamed(name).items()}
    kind = _kind(splits.get("train") or next(iter(splits.values())), labelled)
    shown = {part: rows for part, rows in splits.items() if _shown([rows], kind.label)}
    if not shown:
        raise ValueError(f"{name}: every split withholds its labels")
    # Rows are fetched as they are read: those of a split that nobody asks for are not.
    learnt, judged = shown.get("train"), shown.get("test", shown.get("valid"))
    read = {
        id(rows): _read(rows.name, [rows], bounds, labelled, classes) for rows in (learnt, judged) if rows is not None
    }
    if learnt is None or judged is None:
        return next(iter(read.values())), None
    return read[id(learnt)], read[id(judged)]


def _shown(sources: Sequence[Rows], label: str | None) -> bool:
    """Whether labels are there: a test split may have no such column, or the class -1, which is to say withheld."""
    first = next(((rows, raw) for rows in sources for _, raw in rows.raw()), None)
    if first is None or label is None:
        return first is not None
    rows, raw = first
    try:
        value = rows.read(raw).get(label)
    except ValueError:
        return True  # `_read` says in which file and line
    return value is not None and (label != "label" or str(value) not in ("-1", "-1.0"))


def _read(
    name: str, sources: Sequence[Rows], bounds: Bounds, labelled: bool = True, classes: Mapping[str, int] = NO_NAMES
) -> Texts:
    """The texts of sources that hold columns of the same kind; of more than the bounds allow so many are drawn.

    Args:
        name: Name of them all.
        sources: The sources.
        bounds: How much of the sources is held.
        labelled: Whether labels are read.
        classes: Number of each class, by its name.
    """
    kinds = [_kind(rows, labelled) for rows in sources]
    for rows, other in zip(sources, kinds, strict=True):
        if other != kinds[0]:
            raise ValueError(
                f"{rows.name} has the columns {', '.join(other.names)}, and {sources[0].name} has "
                f"{', '.join(kinds[0].names)}: files of a folder must have the same"
            )
    kind, stream = kinds[0], ((rows, number, raw) for rows in sources for number, raw in rows.raw())
    held, count = drawn(stream, None, size=lambda row: row[0].size(row[2]), fits=bounds.fit)
    number = len(held)
    read = score_reader(-1e9, 1e9) if kind.label == "score" else partial(_class, classes=classes)
    segments: list[tuple[str, ...]] = []
    labels: list[Any] = []
    held.reverse()
    while held:  # a text takes memory either as it was read or as it is decoded
        rows, place, raw = held.pop()
        try:
            row = rows.read(raw)
            tokens = kind.segments == ("tokens",)
            texts = (_sentence(row),) if tokens else tuple(_text(row, column) for column in kind.segments)
            if (kind.label is None or tokens) and not any(text.strip() for text in texts):
                continue
            if kind.label is not None and kind.label_kind == "answers":
                labels.append(_answers(_field(row, kind.label)))
            elif kind.label is not None:
                label = partial(_named, names=rows.names.get(kind.label, ()), classes=classes, read=read)
                labels.append(_tags(row, kind.label, label) if tokens else label(_field(row, kind.label)))
        except ValueError as error:
            raise ValueError(f"{rows.name}, {rows.unit} {place}: {error}") from None
        segments.append(texts)
    if not segments:
        raise ValueError(f"{name} holds no text")
    if number < count or any(rows.cut for rows in sources):
        which = f"{number:,} of {count:,} texts" if number < count else f"the first {number:,} texts"
        if bounds.lacking(number):
            warnings.warn(f"{name}: {which} are read, as many as {LARGEST / 2**20:g} MiB hold", stacklevel=3)
        name = f"{name} ({which})"
    return Texts(
        name, segments, None if kind.label is None else labels, label_kind=kind.label_kind, translated=kind.translated
    )


def _kind(rows: Rows, labelled: bool = True) -> _Columns:
    kind = next((kind for kind in COLUMNS if set(kind.names) <= set(rows.columns)), None)
    if kind is None:
        pairs = "; ".join(", ".join(pair) for pair in PAIRS)
        others = "; ".join(", ".join(kind.names) for kind in COLUMNS if kind.translated or len(kind.segments) == 1)
        raise ValueError(
            f"{rows.name} has no columns of texts: they must be {others}; or those of a pair with score, label or "
            f"neither: {pairs}"
        )
    if not labelled:
        return replace(kind, label=None, label_kind="class")
    bare = kind.label is None and not kind.translated
    if bare and (near := [name for name in rows.columns if get_close_matches("label", [name.lower()])]):
        raise ValueError(f"{rows.name} has a column {near[0]}: classes must be in a column label, or in none")
    beside = (name for name in rows.columns if name in SECOND and name not in kind.segments)
    if kind.label == "label" and len(kind.segments) == 1 and (other := next(beside, None)):
        raise ValueError(
            f"{rows.name} has texts in {other} beside {kind.segments[0]}: classes of pairs stand beside sentence1 and "
            "sentence2"
        )
    return kind


def _field(row: Row, column: str) -> object:
    if row.get(column) is None:
        raise ValueError(f"there is no {column}")
    return row[column]


def _text(row: Row, column: str) -> str:
    text = _field(row, column)
    if not isinstance(text, str):
        raise ValueError(f"the {column} must be a string")
    return text


def _sentence(row: Row) -> str:
    """The words of a row, with a space between."""
    words = _field(row, "tokens")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError("the tokens must be a list of strings, which files .conll, .jsonl and .parquet hold")
    if any(not word or " " in word for word in words):
        raise ValueError("the tokens must be words: one is empty, or has a space")
    return " ".join(words)


def _tags(row: Row, column: str, read: Callable[[object], int | float]) -> list[int]:
    values = _field(row, column)
    if not isinstance(values, list) or len(values) != len(cast(list[str], row["tokens"])):
        raise ValueError(f"the {column} must be a list, a tag for each of the tokens")
    return [int(read(value)) for value in values]


def _answers(value: object) -> list[str]:
    """The answers of a row as SQuAD has them, {"text": [...]}, as a list, or one; none where there is no answer."""
    answers = value.get("text") if isinstance(value, Mapping) else value
    answers = [answers] if isinstance(answers, str) else answers
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise ValueError('the answers must be a list of strings, or {"text": a list of strings}')
    return [answer for answer in answers if answer.strip()]


def _named(
    value: object, names: Sequence[str], classes: Mapping[str, int], read: Callable[[object], int | float]
) -> int | float:
    """A label as a number of the model's, where a source that numbers its classes otherwise has the same names."""
    if isinstance(value, int) and value in range(len(names)) and set(names) <= set(classes):
        return classes[names[value]]
    return read(value)


def _class(value: object, classes: Mapping[str, int]) -> int:
    label = str(value)
    if label not in classes and not label.isdecimal():
        names = ", ".join(list(classes)[:10])
        raise ValueError(f"the label must be {f'one of {names}, or ' if names else ''}a whole number from 0 on")
    return classes[label] if label in classes else int(label)
