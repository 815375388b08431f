"""Tables for a narrow terminal: a table that is too wide becomes several, so that no figure is broken or cut."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

SENTENCE = 24
"""Width in characters of cells that hold sentences: longer text is broken between words to this width."""


def fitted(table: Table, width: int, repeated: int = 1) -> list[Table | Text]:
    """The table, or, where it is too wide for a terminal, its parts from top to bottom.

    Columns whose headings begin with the same line stay together. The title stands above the first part, the caption
    below the last, as wide as the terminal.

    Args:
        table: Table that is printed.
        width: Width of the terminal, in characters.
        repeated: Number of first columns, which name the rows, that every part begins with.
    """
    groups = _groups(table.columns[repeated:])
    first = table.columns[:repeated]
    parts: list[list[Column]] = [[]]
    for group in groups:
        if parts[-1] and _width(table, [*first, *parts[-1], *group]) > width:
            parts.append([])
        parts[-1] += group
    if len(parts) == 1:
        return [_part(table, table.columns, table.title, table.caption)]
    pieces: list[Table | Text] = []
    for number, columns in enumerate(parts):
        pieces += [_part(table, [*first, *columns], None if number else table.title), Text("")]
    return [*pieces[:-1], Text(_text(table.caption), "dim")] if table.caption else pieces[:-1]


def _groups(columns: Sequence[Column]) -> list[list[Column]]:
    """Groups of columns that are read together: the first line of their headings is the same, or empty after it."""
    groups: list[list[Column]] = []
    for column in columns:
        head, *more = _text(column.header).split("\n")
        same = groups and more and head in ("", _text(groups[-1][0].header).split("\n")[0])
        if same:
            groups[-1].append(column)
        else:
            groups.append([column])
    return groups


def _width(table: Table, columns: Sequence[Column]) -> int:
    """Number of characters that a table of these columns needs, at most."""
    _, right, _, left = table.padding
    return 1 + sum(min(_longest(column), SENTENCE) + right + left + 1 for column in columns)


def _longest(column: Column) -> int:
    """Characters of the longest line of a column; of its heading the longest word, as a heading may be broken."""
    words = [word for line in _text(column.header).split("\n") for word in line.split()]
    lines = [line for cell in column.cells for line in _text(cell).split("\n")]
    return max(map(cell_len, [*words, *lines]), default=0)


def _text(cell: RenderableType) -> str:
    return Text.from_markup(cell).plain if isinstance(cell, str) else str(cell)


def _part(
    table: Table, columns: Sequence[Column], title: RenderableType | None, caption: RenderableType | None = None
) -> Table:
    part = Table(box=table.box, show_edge=table.show_edge, pad_edge=table.pad_edge, padding=table.padding)
    part.title, part.caption = title, caption  # type: ignore[assignment]
    part.title_justify, part.caption_justify = table.title_justify, table.caption_justify
    for column in columns:
        short = _longest(column) <= SENTENCE
        least = _longest(column) if short else None
        part.add_column(column.header, justify=column.justify, min_width=least)
    for row, cells in zip(table.rows, zip(*(column.cells for column in columns), strict=True), strict=True):
        part.add_row(*cells, end_section=row.end_section)
    return part
