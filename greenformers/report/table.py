"""Records as one table, with metrics as rows and variants as columns, for the terminal (rich) and as Markdown."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from greenformers.measure.record import METRICS, Record
from greenformers.report.digits import decimals, label, number, reference, scale, times
from greenformers.report.sections import Section, sections_with_figures, variants

INTERVAL = "Difference, 95 % interval"

_INDENT = 1
_GAP = 2
_COLOUR = {"better": "green", "worse": "red", "same": "dim"}


@dataclass(frozen=True)
class Cell:
    """The text of one cell of the table.

    Attributes:
        value: Value in the unit of its row, with its spread.
        change: Change against the baseline: "4.2x" (times better) or "+0.3" (points), with "~" before it where it is
            within noise; empty where nothing is compared.
        verdict: Judgement of the change: "better", "worse" or "same" (equal as shown, or within noise).
    """

    value: str
    change: str = ""
    verdict: str = "same"

    def __str__(self) -> str:
        return f"{self.value} ({self.change})" if self.change else self.value


@dataclass(frozen=True)
class Row:
    """One metric of one section.

    Attributes:
        label: Label of the metric, with its unit.
        cells: Cells of the variants, in the order of the columns.
    """

    label: str
    cells: list[Cell]


def rows(section: Section, columns: Sequence[str]) -> list[Row]:
    """The rows of one section, each with one cell for each variant of `columns`."""
    result = []
    for metric in section.metrics:
        records = {variant: section.cells.get((metric, variant)) for variant in columns}
        values = [record.value for (name, _), record in section.cells.items() if name == metric]
        unit, factor = scale(values, METRICS[metric].unit)
        cells = [_cell(section, record, factor) if record else Cell("–") for record in records.values()]
        result.append(Row(label(metric, unit), cells))
        if any(record.interval for record in records.values() if record):
            result.append(
                Row(INTERVAL, [Cell(interval(record)) if record else Cell("–") for record in records.values()])
            )
    return result


def legend(sections: Sequence[Section]) -> list[str]:
    """The meaning of the signs in the table, as sentences."""
    records = [record for section in sections for record in section.cells.values()]
    names = variants(sections)
    changes = [cell.change for section in sections for row in rows(section, names) for cell in row.cells]
    notes = []
    if baselines := list(dict.fromkeys(section.baseline for section in sections if section.baseline)):
        if any(record.ratio is not None for record in records):
            notes.append(f"(4.2x): 4.2 times better than {' or '.join(baselines)}; below 1x: worse.")
        if any(METRICS[record.metric].unit == "%" for record in records):
            notes.append("Accuracy: difference in points.")
    spread = [record for record in records if record.spread is not None]
    if any("draws" in record.setting for record in spread):
        notes.append("±: standard deviation over the draws.")
    if any("draws" not in record.setting and record.benchmark == "bench" for record in spread):
        notes.append("±: range of the repeats.")
    others = [record for record in spread if "draws" not in record.setting and record.benchmark != "bench"]
    of_scores = [METRICS[record.metric].unit == "%" for record in others]
    if any(of_scores):
        notes.append("±: width of the 95 % interval of scores in percent.")
    if not all(of_scores):
        notes.append("±: interquartile range of the repeats.")
    if any(change.startswith("~") for change in changes):
        notes.append("~: within noise, by the range of the repeats or the 95 % interval of the difference.")
    if any(set(section.cells) == {(metric, name) for metric, _, name in section.points} for section in sections):
        notes.append("Of curves alone: their last points.")
    if any(record.source == "estimated" for record in records):
        notes.append("est.: estimated, not measured.")
    return notes


def settings(sections: Iterable[Section]) -> list[str]:
    """The settings that the titles of the sections leave out, one sentence for each family of sections."""
    return list(dict.fromkeys(f"{section.name}: {section.detail}." for section in sections if section.detail))


def tables(records: Iterable[Record], width: int = 100) -> list[Table]:
    """The table for a terminal, as several tables where the variants do not fit side by side.

    Four variants fit in 100 characters, five in 120. Every table begins with the baseline, so that it can be read
    alone; the legend is the caption of the last one. Names are taken literally, never as markup.

    Args:
        records: Records of the table.
        width: Width of the terminal, in characters.

    Raises:
        ValueError: There are no records, or a record's metric is not in `METRICS`.
    """
    sections = _tabulated(records)
    first, *others = _parts(sections, width)
    parts = [_table(sections, first)]
    for names in others:
        parts[-1].caption = Text("\n")
        parts.append(_table([section for section in sections if section.has(names[1:])], names))
    parts[-1].caption = Text("\n" + "\n".join([*legend(sections), *settings(sections)]), style="dim", justify="left")
    return parts


def markdown(records: Iterable[Record]) -> str:
    """The table as GitHub's Markdown, with a newline at its end.

    Raises:
        ValueError: There are no records, or a record's metric is not in `METRICS`.
    """
    sections = _tabulated(records)
    names = variants(sections)
    lines = [["", *map(_literal, names)], ["---", *["---:"] * len(names)]]
    for section in sections:
        lines.append([f"**{_literal(section.title)}**", *[""] * len(names)])
        lines += [[_literal(text) for text in (row.label, *map(str, row.cells))] for row in rows(section, names)]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{table}\n{_literal(' '.join([*legend(sections), *settings(sections)]))}\n"


def change(section: Section, record: Record) -> Cell:
    """The change of a record against its baseline, as a cell without a value: times better, or points of per cent."""
    if record.ratio is None or record.to == record.variant or not math.isfinite(record.ratio):
        return Cell("")
    difference = record.value - reference(record)
    text = f"{difference:+.1f}" if METRICS[record.metric].unit == "%" else times(record.ratio)
    mark = "~" if _noise(section, record, difference) else ""
    same = mark or text in ("1.00x", "+0.0", "-0.0")
    other = "" if record.to == section.baseline else f" vs {record.to}"
    verdict = "same" if same else "better" if record.ratio > 1 else "worse"
    return Cell("", mark + text + other, verdict)


def interval(record: Record) -> str:
    """The confidence interval of the difference as text, in the unit of the record; a dash where there is none."""
    if not record.interval:
        return "–"
    digits = 1 if max(map(abs, record.interval)) >= 1 else 3  # of cosines all lies behind the point
    return " to ".join(f"{end:+.{digits}f}" for end in record.interval)


def _noise(section: Section, record: Record, difference: float) -> bool:
    """Whether a difference is within noise: by its confidence interval, or else by the spread of the repeats."""
    if record.interval:
        return record.interval[0] <= 0 <= record.interval[1]
    base = section.cells.get((record.metric, record.to or ""))
    noise = max(record.spread or 0, (base and base.spread) or 0)
    return noise > 0 and abs(difference) <= noise


def _tabulated(records: Iterable[Record]) -> list[Section]:
    sections = sections_with_figures(records)
    if not sections:
        raise ValueError("a table needs at least one record with a figure, got none")
    return sections


def _parts(sections: Sequence[Section], width: int) -> list[list[str]]:
    """The variants in as few parts as fit in `width` characters, each with the baseline first."""
    first, *others = variants(sections)
    lines = {name: [row for section in sections for row in rows(section, [name])] for name in (first, *others)}
    taken = {name: _GAP + max(len(name), *(len(str(row.cells[0])) for row in lines[name])) for name in lines}
    room = width - _INDENT - max(len(row.label) for row in lines[first]) - taken[first]
    parts = [[first]]
    for name in others:
        if len(parts[-1]) > 1 and taken[name] > room - sum(taken[other] for other in parts[-1][1:]):
            parts.append([first])
        parts[-1].append(name)
    return parts


def _table(sections: Sequence[Section], names: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    table.caption_justify = "left"
    table.add_column("")
    for name in names:
        table.add_column(Text(name), justify="right")
    for section in sections:
        table.add_section()
        table.add_row(Text(section.title, style="bold"))
        for row in rows(section, names):
            table.add_row(Text(" " * _INDENT + row.label), *map(_text, row.cells))
    return table


def _text(cell: Cell) -> Text:
    text = Text(cell.value)
    return text.append(f" ({cell.change})", style=_COLOUR[cell.verdict]) if cell.change else text


def _literal(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|~&#])", r"\\\1", text).replace("\n", " ")


def _cell(section: Section, record: Record, factor: float) -> Cell:
    value = record.value / factor
    percent = METRICS[record.metric].unit == "%"
    text = f"{value:.1f}" if percent and math.isfinite(value) else number(value)
    if record.spread is not None and math.isfinite(value):
        digits = 1 if percent else decimals(float(f"{value:.2e}"))
        text += f"±{record.spread / factor:,.{digits}f}"
    if record.source == "estimated":
        text += " est."
    against = change(section, record)
    return Cell(text, against.change, against.verdict)
