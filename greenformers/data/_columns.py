"""Columns of the `datasets` library's splits, as texts, pairs, labelled examples and tagged sentences.

Errors name the data set, the split and the row, counted from 0 as the library does; they never show its text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from greenformers.data._hub import fetch
from greenformers.data._kinds import Examples, Labelled, Pairs, Sentences, Tagged, Text
from greenformers.data._labels import Reader

SEGMENTS = {1: (("text",), ("sentence",)), 2: (("question", "sentence"), ("sentence1", "sentence2"))}
LABELS = ("label", "score")
TAGS = ("ner_tags", "tags")
WITHHELD = -1  # GLUE's label where it keeps the label to itself


def fetch_text(name: str, dataset: str) -> Text:
    """Running text: column text or sentence, each row one or more whole lines.

    Raises:
        ValueError: As in `fetch`; or there is no such column, or a row has no text.
        OSError: As in `fetch`.
    """
    splits = {}
    for part, split in fetch(dataset).items():
        where = f"{dataset}, {part}"
        (rows,) = _text_columns(where, split, SEGMENTS[1])
        # The hub's WikiText ends only the lines that have words.
        splits[part] = "".join(row if row.endswith("\n") else f"{row}\n" for row in rows)
    return Text(name, **({"train": "", "valid": "", "test": ""} | splits))


def fetch_pairs(name: str, source: str, target: str, dataset: str) -> Pairs:
    """Pairs: a column translation of {source: ..., target: ...}, or the columns source and target, as "en" and "de".

    Raises:
        ValueError: As in `fetch`; or there are no such columns, or a row has no text.
        OSError: As in `fetch`.
    """
    splits: dict[str, list[tuple[str, str]]] = {"train": [], "valid": [], "test": []}
    for part, split in fetch(dataset).items():
        where = f"{dataset}, {part}"
        if "translation" in split.column_names:
            rows = list(split["translation"])
            columns = [_texts(where, [(row or {}).get(language) for row in rows]) for language in (source, target)]
        else:
            columns = _text_columns(where, split, ((source, target),))
        splits[part] = list(zip(columns[0], columns[1], strict=True))
    return Pairs(name, source, target, **splits)


def fetch_labelled(
    name: str, classes: tuple[str, ...] | None, dataset: str, segments: int, read_label: Reader
) -> Labelled:
    """Labelled texts: the columns of `SEGMENTS` for 1 or 2 segments, and label or score.

    Labels may be numbers or names of classes; numbers count the data set's own classes where it names them as we do.
    A split of which all labels are -1, as GLUE's tests, counts as absent.

    Raises:
        ValueError: As in `fetch`; or there are no such columns, or a row has no text or a label out of range.
        OSError: As in `fetch`.
    """
    splits = {"train": Examples(), "valid": Examples(), "test": Examples()}
    for part, split in fetch(dataset).items():
        where = f"{dataset}, {part}"
        (column,) = _present(where, split, tuple((label,) for label in LABELS))
        values = list(split[column])
        if all(value == WITHHELD for value in values):
            continue
        own = getattr(split.features[column], "names", None)
        if own is not None and classes is not None and set(own) == set(classes):
            values = [own[value] if value in range(len(own)) else value for value in values]
        labels = []
        for number, value in enumerate(values):
            try:
                labels.append(read_label(value))
            except ValueError as error:
                raise ValueError(f"{where}, row {number}: {error}") from None
        splits[part] = Examples(list(zip(*_text_columns(where, split, SEGMENTS[segments]), strict=True)), labels)
    return Labelled(name, classes, **splits)


def fetch_tagged(name: str, tags: tuple[str, ...], dataset: str) -> Tagged:
    """Tagged sentences: the columns tokens, a list of words, and ner_tags or tags, a list as long.

    Tags are names, or numbers: of the data set's own names where it has them, else of ours.

    Raises:
        ValueError: As in `fetch`; or there are no such columns, or a row has no words or no tag for each.
        OSError: As in `fetch`.
    """
    numbers = {tag: number for number, tag in enumerate(tags)}
    splits = {"train": Sentences(), "valid": Sentences(), "test": Sentences()}
    for part, split in fetch(dataset).items():
        where = f"{dataset}, {part}"
        words, column = _present(where, split, tuple(("tokens", tag) for tag in TAGS))
        feature = getattr(split.features[column], "feature", None)
        names = getattr(feature, "names", None) or tags
        sentences = Sentences()
        for number, (row, values) in enumerate(zip(split[words], split[column], strict=True)):
            own = [names[value] if value in range(len(names)) else value for value in values]
            if not row or len(own) != len(row) or not all(tag in numbers for tag in own):
                raise ValueError(f"{where}, row {number}: expected words and a tag for each, one of {', '.join(tags)}")
            sentences.words.append(list(row))
            sentences.tags.append([numbers[tag] for tag in own])
        splits[part] = sentences
    return Tagged(name, tags, **splits)


def _present(where: str, split: Any, choices: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    """The first of the choices whose columns are all in the split."""
    for choice in choices:
        if set(choice) <= set(split.column_names):
            return choice
    allowed = " or ".join("+".join(choice) for choice in choices)
    raise ValueError(f"{where}: columns must include {allowed}, found {', '.join(split.column_names)}")


def _text_columns(where: str, split: Any, choices: tuple[tuple[str, ...], ...]) -> list[list[str]]:
    return [_texts(where, split[name]) for name in _present(where, split, choices)]


def _texts(where: str, column: Iterable[Any]) -> list[str]:
    texts = list(column)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"{where}, row {number}: expected text, found {type(text).__name__}")
    return texts
