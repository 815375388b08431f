"""Records as one table, for the terminal (rich) and for a README (Markdown): a row a measure, a column a variant."""

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

# The units a figure may be shown in, smallest first, as multiples of the unit it is recorded in.
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
    """The records of one benchmark in one setting: one part of the table, one picture.

    Attributes:
        name: what it shares with its siblings ("Layer").
        title: what tells it from them ("Layer, length 4096, batch 1").
        detail: the rest of the setting ("hidden 768, layers 1").
        cells: the figures, by metric and variant; of repeated records the last.
        points: the curves, by metric, `POINTS` setting and variant: the value at each step or epoch, in order.
    """

    name: str
    title: str
    detail: str
    cells: dict[tuple[str, str], Record] = field(default_factory=dict)
    points: dict[tuple[str, str, str], dict[float, float]] = field(default_factory=dict)

    @property
    def metrics(self) -> list[str]:
        """The metrics that stand in the table, in the order of `METRICS`."""
        found = {metric for metric, _ in self.cells}
        return [metric for metric in METRICS if metric in found]

    @property
    def baseline(self) -> str | None:
        """The variant that the ratios compare with: the first one named."""
        return next((record.to for record in self.cells.values() if record.to), None)

    def has(self, names: Iterable[str]) -> bool:
        """Whether any of these variants has a figure here."""
        return not {variant for _, variant in self.cells}.isdisjoint(names)


@dataclass(frozen=True)
class Cell:
    """One figure, as text.

    Attributes:
        value: the figure in the unit of its row, with its spread.
        change: against the baseline: "4.2x" (times better) or "+0.3" (points), "~" before it where that is within
            noise; empty where nothing is compared.
        verdict: "better", "worse" or "same" (equal as shown, or within noise).
    """

    value: str
    change: str = ""
    verdict: str = "same"

    def __str__(self) -> str:
        return f"{self.value} ({self.change})" if self.change else self.value


@dataclass(frozen=True)
class Row:
    """One measure of one section: its label with unit, and a cell a variant."""

    label: str
    cells: list[Cell]


def sections(records: Iterable[Record]) -> list[Section]:
    """The records by benchmark and setting, in the order in which those first appear.

    Raises:
        ValueError: a record's metric is not in `METRICS`.
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        if record.metric not in METRICS:
            raise ValueError(f"metric must be one of {', '.join(METRICS)}, got {record.metric!r}")
        groups.setdefault(_key(record), []).append(record)
    firsts = [group[0] for group in groups.values()]
    found = [Section(*_titles(first, firsts)) for first in firsts]
    for section, group in zip(found, groups.values(), strict=True):
        for record in group:
            axis = _axis(record)
            if axis is None:
                section.cells[record.metric, record.variant] = record
            else:
                curve = section.points.setdefault((record.metric, axis, record.variant), {})
                curve[record.setting[axis]] = record.value
        section.points.update({key: dict(sorted(curve.items())) for key, curve in section.points.items()})
    return found


def sections_with_figures(records: Iterable[Record]) -> list[Section]:
    """The sections that have figures. Where a section has nothing but curves, their last points are its figures.

    Raises:
        ValueError: a record's metric is not in `METRICS`.
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


def variants(found: Iterable[Section]) -> list[str]:
    """The variants of all sections: baselines first, then as they appear."""
    found = list(found)
    baselines = [section.baseline for section in found if section.baseline]
    cells = [variant for section in found for _, variant in section.cells]
    curves = [variant for section in found for *_, variant in section.points]
    return list(dict.fromkeys([*baselines, *cells, *curves]))


def rows(section: Section, columns: Sequence[str]) -> list[Row]:
    """The rows of one section, with a cell for each variant of `columns`."""
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


def legend(found: Sequence[Section]) -> list[str]:
    """What the signs of the table mean, a sentence an item."""
    records = [record for section in found for record in section.cells.values()]
    changes = [cell.change for section in found for row in rows(section, variants(found)) for cell in row.cells]
    notes = []
    if baselines := list(dict.fromkeys(section.baseline for section in found if section.baseline)):
        if any(record.ratio is not None for record in records):
            notes.append(f"(4.2x): 4.2 times better than {' or '.join(baselines)}; below 1x: worse.")
        if any(METRICS[record.metric].unit == "%" for record in records):
            notes.append("Accuracy: difference in points.")
    spread = [record for record in records if record.spread is not None]
    if any("draws" in record.setting for record in spread):
        notes.append("±: standard deviation over the draws.")
    if any("draws" not in record.setting for record in spread):
        notes.append("±: interquartile range of the repeats.")
    if any(change.startswith("~") for change in changes):
        notes.append("~: within noise, by the range of the repeats or the 95 % interval of the difference.")
    if any(set(section.cells) == {(metric, name) for metric, _, name in section.points} for section in found):
        notes.append("Of curves alone: their last points.")
    if any(record.source == "estimated" for record in records):
        notes.append("est.: estimated, not measured.")
    return notes


def settings(found: Iterable[Section]) -> list[str]:
    """What the titles of the sections leave out, a sentence a family of sections."""
    return list(dict.fromkeys(f"{section.name}: {section.detail}." for section in found if section.detail))


def tables(records: Iterable[Record], width: int = 100) -> list[Table]:
    """The table for a terminal of `width` columns: one, or where the variants do not fit side by side, several.

    Four variants fit in 100 columns, five in 120. Further parts repeat the baseline, so that each reads alone; the
    legend is the caption of the last. Names are taken literally, never as markup.

    Raises:
        ValueError: there are no records, or a record's metric is not in `METRICS`.
    """
    found = _tabulated(records)
    first, *others = _parts(found, width)
    parts = [_table(found, first)]
    for names in others:
        parts[-1].caption = Text("\n")
        parts.append(_table([section for section in found if section.has(names[1:])], names))
    parts[-1].caption = Text("\n" + "\n".join([*legend(found), *settings(found)]), style="dim", justify="left")
    return parts


def markdown(records: Iterable[Record]) -> str:
    """The table as Markdown (GitHub's), ending in a newline.

    Raises:
        ValueError: there are no records, or a record's metric is not in `METRICS`.
    """
    found = _tabulated(records)
    names = variants(found)
    lines = [["", *map(_literal, names)], ["---", *["---:"] * len(names)]]
    for section in found:
        lines.append([f"**{_literal(section.title)}**", *[""] * len(names)])
        lines += [[_literal(text) for text in (row.label, *map(str, row.cells))] for row in rows(section, names)]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{table}\n{_literal(' '.join([*legend(found), *settings(found)]))}\n"


def scale(values: Iterable[float], unit: str) -> tuple[str, float]:
    """The unit in which all of these values read well, and the factor to divide them by.

    One unit serves a whole row: the largest in which the smallest value is still at least 1.
    """
    positive = [abs(value) for value in values if value and math.isfinite(value)]
    scales = SCALES.get(unit, ((unit, 1),))
    if not positive:
        return unit, 1
    fitting = [step for step in scales if min(positive) >= step[1]]
    return (fitting or scales)[-1 if fitting else 0]


def label(metric: str, unit: str) -> str:
    """The metric for people, with its unit in brackets."""
    return f"{METRICS[metric].label} ({unit})" if unit else METRICS[metric].label


def number(value: float) -> str:
    """Three significant digits, without an exponent: 0.0123, 12.3, 1,230. Not finite: n/a."""
    if not math.isfinite(value):
        return "n/a"
    rounded = float(f"{value:.2e}")
    return f"{rounded:,.{_decimals(rounded)}f}"


def change(section: Section, record: Record) -> Cell:
    """A record against its baseline, as a cell without a value: times better, or points where it is a percentage."""
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
    """The confidence interval of the difference, as text, in the unit of the record; a dash where there is none."""
    return f"{record.interval[0]:+.1f} to {record.interval[1]:+.1f}" if record.interval else "–"


def reference(record: Record) -> float:
    """What the baseline scored, by the record's ratio to it; the record's own value where it has none."""
    ratio = record.ratio or 1
    return record.value * ratio if METRICS[record.metric].less_is_better else record.value / ratio


def times(ratio: float) -> str:
    """A ratio for people, to two digits, or three near 1: 0.048x, 0.95x, 1.04x, 4.2x, 81x."""
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
    found = sections_with_figures(records)
    if not found:
        raise ValueError("no records to tabulate")
    return found


def _parts(found: Sequence[Section], width: int) -> list[list[str]]:
    """The variants in as few parts as fit in `width`, each begun by the baseline."""
    first, *others = variants(found)
    lines = {name: [row for section in found for row in rows(section, [name])] for name in (first, *others)}
    taken = {name: _GAP + max(len(name), *(len(str(row.cells[0])) for row in lines[name])) for name in lines}
    room = width - _INDENT - max(len(row.label) for row in lines[first]) - taken[first]
    parts = [[first]]
    for name in others:
        if len(parts[-1]) > 1 and taken[name] > room - sum(taken[other] for other in parts[-1][1:]):
            parts.append([first])
        parts[-1].append(name)
    return parts


def _table(found: Sequence[Section], names: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    table.caption_justify = "left"
    table.add_column("")
    for name in names:
        table.add_column(Text(name), justify="right")
    for section in found:
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
    """What the record is a point of a curve over; None of a figure."""
    return next((point for point in POINTS if point in record.setting), None)


def _key(record: Record) -> str:
    """What tells the section of a record from others."""
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
