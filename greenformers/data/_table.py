"""Tables of labelled texts: a line a row, fields between tabs, no quoting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from greenformers.data._files import find, read_lines
from greenformers.data._kinds import Examples, Labelled
from greenformers.data._labels import Reader

PARTS = ("train", "dev", "test")


def read_table(
    path: Path,
    segments: tuple[str, ...],
    label: str | None,
    read_label: Reader,
    header: tuple[str, ...] | None = None,
    read_segment: Callable[[str], str] = str,
    may_withhold: bool = False,
) -> Examples:
    """Read the examples of a table.

    Args:
        path: File of the table, plain, .gz or .xz.
        segments: Names of the columns of text.
        label: Name of the column of labels; None where there are none.
        read_label: Function from a field to a label; it raises a ValueError that does not show the field.
        header: Names of the columns of a table whose first line does not name `segments`; None where it must.
        read_segment: Function from a field to text; it raises alike.
        may_withhold: Whether the column of labels may be missing; there are no examples then.

    Raises:
        ValueError: The file is no such table; the message names the file and the line.
        OSError: The file cannot be read.
    """
    lines = read_lines(path)
    columns, first = lines[0].split("\t") if lines else [], 2
    if not set(segments) <= set(columns):
        if header is None:
            raise ValueError(f"{path.name}, line 1: the header must name {', '.join(segments)}")
        columns, first = list(header), 1
    if label is not None and label not in columns:
        if may_withhold:
            return Examples()
        raise ValueError(f"{path.name}, line 1: the header must name {label}")
    texts: list[tuple[str, ...]] = []
    labels: list[float] = []
    for number, line in enumerate(lines[first - 1 :], start=first):
        fields = line.split("\t")
        if len(fields) != len(columns):
            raise ValueError(f"{path.name}, line {number}: expected {len(columns)} fields, found {len(fields)}")
        row = dict(zip(columns, fields, strict=True))
        try:
            texts.append(tuple(read_segment(row[name]) for name in segments))
            if label is not None:
                labels.append(read_label(row[label]))
        except ValueError as error:
            raise ValueError(f"{path.name}, line {number}: {error}") from None
    return Examples(texts, labels)


def read_tables(
    name: str,
    classes: tuple[str, ...] | None,
    folder: Path,
    segments: tuple[str, ...],
    label: str,
    read_label: Reader,
    header: tuple[str, ...] | None = None,
) -> Labelled:
    """Read train.tsv, dev.tsv and test.tsv of GLUE, as `read_table` does.

    A file that is not there is an empty split, and so is a test without labels.

    Raises:
        ValueError: As in `read_table`.
        OSError: None of the three is there, or one cannot be read.
    """
    paths = {part: find(folder, f"{part}.tsv") for part in PARTS}
    if not any(paths.values()):
        raise FileNotFoundError(
            f"{name} needs train.tsv, dev.tsv or test.tsv, or one of these as .gz or .xz; "
            f"none is in folder {str(folder)!r}"
        )
    splits = [
        read_table(path, segments, label, read_label, header, may_withhold=part == "test") if path else Examples()
        for part, path in paths.items()
    ]
    return Labelled(name, classes, *splits)
