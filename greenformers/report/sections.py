"""Records by benchmark and setting: the sections that tables and pictures have in common."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from greenformers.measure.record import METRICS, Record

# Settings that number the points of a curve. A record that has one is drawn, not tabulated.
POINTS = ("step", "epoch")


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
    families: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for first in firsts:
        families.setdefault(_family(first), []).append(_place(first))
    several = len({first.benchmark for first in firsts}) > 1
    parts = [Section(*_titles(first, families[_family(first)], several)) for first in firsts]
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


def _axis(record: Record) -> str | None:
    """The setting of `POINTS` that the record is a point of a curve over; None where it belongs to no curve."""
    return next((point for point in POINTS if point in record.setting), None)


def _key(record: Record) -> str:
    """The key of the section of a record: its benchmark and its setting."""
    return json.dumps([record.benchmark, _place(record)], sort_keys=True, default=str)


def _place(record: Record) -> dict[str, Any]:
    return {key: value for key, value in record.setting.items() if key not in POINTS}


def _titles(record: Record, family: Sequence[dict[str, Any]], several: bool) -> tuple[str, str, str]:
    """Name, title and detail of the section of a record.

    Args:
        record: The first of the section.
        family: Settings of the first records of the sections that are of its family.
        several: Whether there are sections of several benchmarks.
    """
    place = _place(record)
    differs = [key for key in place if any(other.get(key) != place[key] for other in family)]
    heads = [record.benchmark.replace("_", " ")] if several else []
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
