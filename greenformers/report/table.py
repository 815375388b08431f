"""Records as one table, with metrics as rows and variants as columns, for the terminal (rich) and as Markdown."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from greenformers.measure.record import METRICS, Record

# Settings that number the points of a curve. A record that has one is drawn, not tabulated.
POINTS = ("step", "epoch")

# Units that a value may be shown in, smallest first, as multiples of the unit that it is recorded in.
SCALES: dict[str, tuple[tuple[str, float], ...]] = {
    "": (("", 1), ("k", 1e3), ("M", 1e6), ("G", 1e9)),
    "ms": (("µs", 1e-3), ("ms", 1), ("s", 1e3)),
    "s": (("ms", 1e-3), ("s", 1), ("h", 3600)),
    "MiB": (("KiB", 1 / 1024), ("MiB", 1), ("GiB", 1024)),
    "GFLOP": (("MFLOP", 1e-3), ("GFLOP", 1), ("TFLOP", 1e3)),
    "Wh": (("mWh", 1e-3), ("Wh", 1), ("kWh", 1e3)),
    "mWh": (("µWh", 1e-3), ("mWh", 1), ("Wh", 1e3)),
    "g": (("mg", 1e-3), ("g", 1), ("kg", 1e3)),
}

INTERVAL = "Difference, 95 % interval"

_INDENT = 1
_GAP = 2
_COLOUR = {"better": "green", "worse": "red", "same": "dim"}


@dataclass(frozen=True)
class Section:
    """The records of one benchmark in one setting: one part of the table, and one picture.

    Attributes:
        name: Name that the sections of a family share ("Layer").
        title: Name with the part of the setting that differs in the family ("Layer, length 4096, batch 1").
        detail: The rest of the setting ("hidden 768, layers 1").
        cells: Records that are no points of curves, by metric and variant; of repeated ones the last.
        points: Curves by metric, setting of `POINTS` and variant: the value at each step or epoch, in order.
    """

    name: str
    title: str
    detail: str
    cells: dict[tuple[str, str], Record] = field(default_factory=dict)
    points: dict[tuple[str, str, str], dict[float, float]] = field(default_factory=dict)

    @property
    def metrics(self) -> list[str]:
        """The metrics of the table, in the order of `METRICS`."""
        tabulated = {metric for metric, _ in self.cells}
        return [metric for metric in METRICS if metric in tabulated]

    @property
    def baseline(self) -> str | None:
        """The variant that the ratios compare with, by the first record that has one."""
        return next((record.to for record in self.cells.values() if record.to), None)

    def has(self, names: Iterable[str]) -> bool:
        """Whether any of these variants has a record in `cells`."""
        return not {variant for _, variant in self.cells}.isdisjoint(names)


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


def sections(records: Iterable[Record]) -> list[Section]:
    """The sections of the records: by benchmark and setting, in the order in which these first appear.

    Raises:
        ValueError: A record's metric is not in `METRICS`.
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        if record.metric not in METRICS:
            raise ValueError(f"metric must be one of {', '.join(METRICS)}, got {record.metric!r}")
        groups.setdefault(_key(record), []).append(record)
    firsts = [group[0] for group in groups.values()]
    parts = [Section(*_titles(first, firsts)) for first in firsts]
    for section, group in zip(parts, groups.values(), strict=True):
        for record in group:
            axis = _axis(record)
            if axis is None:
                section.cells[record.metric, record.variant] = record
            else:
                curve = section.points.setdefault((record.metric, axis, record.variant), {})
                curve[record.setting[axis]] = record.value
        section.points.update({key: dict(sorted(curve.items())) for key, curve in section.points.items()})
    return parts


def sections_with_figures(records: Iterable[Record]) -> list[Section]:
    """The sections that have cells. Where a section has only curves, their last points become its cells.

    Raises:
        ValueError: A record's metric is not in `METRICS`.
    """
    records = list(records)
    with_figures = {_key(record) for record in records if _axis(record) is None}
    ends: dict[tuple[str, str, str], Record] = {}
    for record in records:
        axis = _axis(record)
        if axis is not None and _key(record) not in with_figures:
            place = (_key(record), record.metric, record.variant)
            if place not in ends or record.setting[axis] >= ends[place].setting[axis]:
                ends[place] = record
    figures = [replace(record, setting=_place(record)) for record in ends.values()]
    return [section for section in sections([*records, *figures]) if section.cells]


def variants(sections: Iterable[Section]) -> list[str]:
    """The variants of all sections: the baselines, and then the others in the order in which they appear.

    One that an earlier section lacks stands before what follows it.
    """
    sections = list(sections)
    baselines = [section.baseline for section in sections if section.baseline]
    cells: list[str] = []
    for section in sections:
        own = list(dict.fromkeys(variant for _, variant in section.cells))
        for at, name in enumerate(own):
            if name not in cells:
                follows = next((other for other in own[at + 1 :] if other in cells), None)
                cells.insert(len(cells) if follows is None else cells.index(follows), name)
    curves = [variant for section in sections for *_, variant in section.points]
    return list(dict.fromkeys([*baselines, *cells, *curves]))


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


def scale(values: Iterable[float], unit: str) -> tuple[str, float]:
    """The unit in which all of these values are shown, and the factor that they are divided by.

    A row has one unit: the largest in which its smallest value is still at least 1.
    """
    positive = [abs(value) for value in values if value and math.isfinite(value)]
    scales = SCALES.get(unit, ((unit, 1),))
    if not positive:
        return unit, 1
    fitting = [step for step in scales if min(positive) >= step[1]]
    return (fitting or scales)[-1 if fitting else 0]


def label(metric: str, unit: str) -> str:
    """The label of the metric, with the unit in brackets."""
    return f"{METRICS[metric].label} ({unit})" if unit else METRICS[metric].label


def number(value: float) -> str:
    """The value with three significant digits, without an exponent: 0.0123, 12.3, 1,230; n/a where it is not finite."""
    if not math.isfinite(value):
        return "n/a"
    rounded = float(f"{value:.2e}")
    return f"{rounded:,.{_decimals(rounded)}f}"


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


def reference(record: Record) -> float:
    """The baseline's value, computed from the record's ratio to it; the record's own value where it has no ratio."""
    ratio = record.ratio or 1
    return record.value * ratio if METRICS[record.metric].less_is_better else record.value / ratio


def times(ratio: float) -> str:
    """The ratio with two significant digits, or three near 1: 0.048x, 0.95x, 1.04x, 4.2x, 81x."""
    if ratio < 0.1:
        return f"{ratio:.2g}x"
    return f"{ratio:,.{2 if ratio < 1.095 else 1 if ratio < 9.95 else 0}f}x"


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


def _axis(record: Record) -> str | None:
    """The setting of `POINTS` that the record is a point of a curve over; None where it belongs to no curve."""
    return next((point for point in POINTS if point in record.setting), None)


def _key(record: Record) -> str:
    """The key of the section of a record: its benchmark and its setting."""
    return json.dumps([record.benchmark, _place(record)], sort_keys=True, default=str)


def _place(record: Record) -> dict[str, Any]:
    return {key: value for key, value in record.setting.items() if key not in POINTS}


def _titles(record: Record, firsts: Sequence[Record]) -> tuple[str, str, str]:
    """Name, title and detail of the section of `record`, among the first records of all sections."""
    place = _place(record)
    family = [_place(other) for other in firsts if _family(other) == _family(record)]
    differs = [key for key in place if any(other.get(key) != place[key] for other in family)]
    heads = [record.benchmark.replace("_", " ")] if len({first.benchmark for first in firsts}) > 1 else []
    heads += [str(place["at"])] if "at" in place else []
    heads = heads or ([] if differs else [record.benchmark.replace("_", " ")])
    title = _sentence([*heads, *_words(place, differs)])
    rest = [key for key in place if key != "at" and key not in differs]
    return _sentence(heads) or "Throughout", title, ", ".join(_words(place, rest))


def _family(record: Record) -> tuple[str, str]:
    return record.benchmark, str(record.setting.get("at"))


def _words(place: dict[str, Any], keys: Iterable[str]) -> list[str]:
    return [f"{key.replace('_', ' ')} {place[key]}" for key in keys]


def _sentence(words: Sequence[str]) -> str:
    text = ", ".join(words)
    return text[:1].upper() + text[1:]


def _decimals(rounded: float) -> int:
    return max(0, 2 - math.floor(math.log10(abs(rounded)))) if rounded else 0


def _cell(section: Section, record: Record, factor: float) -> Cell:
    value = record.value / factor
    percent = METRICS[record.metric].unit == "%"
    text = f"{value:.1f}" if percent and math.isfinite(value) else number(value)
    if record.spread is not None and math.isfinite(value):
        decimals = 1 if percent else _decimals(float(f"{value:.2e}"))
        text += f"±{record.spread / factor:,.{decimals}f}"
    if record.source == "estimated":
        text += " est."
    against = change(section, record)
    return Cell(text, against.change, against.verdict)
