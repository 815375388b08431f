"""Records as pictures: accuracy against cost, each measure against the baseline, and training curves.

Colours are those of Okabe and Ito (Color Universal Design, 2008), told apart under any colour blindness; markers,
hatches and line styles distinguish the same variants. Figures are drawn without pyplot, so none stays open, and under
matplotlib's default style, so that the same records give the same bytes whatever the user's settings.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Literal, NamedTuple

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator

from greenformers.measure.record import METRICS, Record
from greenformers.report.digits import label, number, reference, scale
from greenformers.report.names import GREY, Spot, name_points, plain
from greenformers.report.sections import Section, sections, variants
from greenformers.report.table import change

DPI = 150
COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "---", "|||", "+++")
LINES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")

# Costs that accuracy is drawn against, where they were measured.
COSTS = ("latency", "energy")
PLACES = {"step": "Step (optimiser updates)", "epoch": "Epoch (passes over the data)"}

LEAST_SPAN = 5.0
"""Least span of an axis of percentages, in points: differences of tenths must not look large."""

_LETTERS = 9  # letters of a title in an inch
_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.grid": True,
    "axes.unicode_minus": False,
    "grid.color": "#e4e4e4",
    "xtick.color": GREY,
    "ytick.color": GREY,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
}
house = style.context(["default", _STYLE])
"""Decorator of functions that draw: they draw in the style of all our figures, whatever the user's settings."""


class Look(NamedTuple):
    """Colour, marker, hatch and line style of one variant, the same in every picture."""

    colour: str
    marker: str
    hatch: str
    line: Literal["-", "--", ":", "-."]


class Picture(NamedTuple):
    """A figure with its texts.

    Attributes:
        name: File name, without its ending.
        figure: The figure.
        caption: Caption below the figure.
        alt: Description of the figure, for readers who cannot see it.
    """

    name: str
    figure: Figure
    caption: str
    alt: str


def looks(names: Iterable[str]) -> dict[str, Look]:
    """A look for each variant, no two alike: black for the first, the baseline."""
    return {
        name: Look(
            COLOURS[place % len(COLOURS)],
            MARKERS[place % len(MARKERS)],
            HATCHES[place % len(HATCHES)],
            LINES[place % len(LINES)],
        )
        for place, name in enumerate(names)
    }


def pictures(records: Iterable[Record]) -> list[Picture]:
    """All pictures that these records allow, section by section, each with a different name."""
    grouped = sections(records)
    dress = looks(variants(grouped))
    drawn: dict[str, Picture] = {}
    for section in grouped:
        for kind, draw in (("accuracy", accuracy), ("ratios", ratios), ("curves", curves)):
            if figure := draw(section, dress):
                name = _free(f"{kind}-{section.title}", drawn)
                drawn[name] = Picture(name, figure, *_words(kind, section))
    return list(drawn.values())


@house
def accuracy(section: Section, dress: Mapping[str, Look]) -> Figure | None:
    """A figure of test accuracy against each of `COSTS`; None where fewer than two variants have both."""
    panels = {cost: points for cost in COSTS if len(points := _points(section, cost)) > 1}
    if not panels:
        return None
    title = f"{section.title}: accuracy against cost (up and to the left is better)"
    figure = new_figure(4.4 * len(panels) + 0.6, 3.9, title)
    drawn: list[tuple[Axes, dict[str, Spot]]] = []
    for axes, (cost, points) in zip(grid(figure, 1, len(panels), sharey=True), panels.items(), strict=True):
        unit, factor = scale([x.value for x, _ in points.values()], METRICS[cost].unit)
        spots = {
            name: Spot(x.value / factor, y.value, (x.spread or 0) / factor / 2, *_ends(y))
            for name, (x, y) in points.items()
        }
        for name, (x, y, dx, low, high) in spots.items():
            look, up = dress[name], [[max(0, y - low)], [max(0, high - y)]]
            axes.errorbar(x, y, up, dx, color=look.colour, marker=look.marker, markersize=8, elinewidth=1, capsize=2)
        if base := points.get(section.baseline or ""):
            axes.axhline(base[1].value, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
        axes.margins(0.3, 0.2)
        axes.set_ylim(*_span(spots.values()))
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.set_xlabel(label(cost, unit) + _estimated(x for x, _ in points.values()))
        axes.set_ylabel(label("test_accuracy", METRICS["test_accuracy"].unit))
        axes.label_outer()
        drawn.append((axes, spots))
    settle(figure)
    renderer = FigureCanvasAgg(figure).get_renderer()
    for axes, spots in drawn:
        name_points(axes, spots, renderer)
    return figure


@house
def ratios(section: Section, dress: Mapping[str, Look]) -> Figure | None:
    """A figure of how many times better than the baseline variants are; None where no record has a ratio to it.

    There is one panel for each metric, and in it one bar for each variant. The scale is logarithmic and bars start at
    the baseline, so that twice as good and half as good look alike. Percentages are compared in points, on a linear
    scale.
    """
    rated = {key: record for key, record in section.cells.items() if _rated(section, record)}
    metrics = [metric for metric in section.metrics if any(metric == key[0] for key in rated)]
    names = [name for name in dress if any(name == key[1] for key in rated)]
    if not rated:
        return None
    down = math.ceil(len(metrics) / 4)
    across = math.ceil(len(metrics) / down)
    title = f"{section.title}: times better than {section.baseline}"
    width = 2.1 * across + 0.3 + 0.075 * max(map(len, names))
    figure = new_figure(width, down * (1.05 + 0.24 * len(names)) + 0.4, title)
    panels = grid(figure, down, across, sharey=True)
    for axes in panels[len(metrics) :]:
        axes.remove()
    values = [record.ratio or 1 for record in rated.values() if METRICS[record.metric].unit != "%"]
    for axes, metric in zip(panels, metrics, strict=False):
        percent = METRICS[metric].unit == "%"
        if percent:
            _scale_points(axes, [record for key, record in rated.items() if key[0] == metric])
        else:
            scale_times(axes, values)
        for place, name in enumerate(names):
            _bar(axes, place, section, section.cells.get((metric, name)), dress[name], percent)
        axes.set_yticks(range(len(names)), map(plain, names), color="black")
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.set_ylim(len(names) - 0.5, -0.5)
        _head(axes, section, metric)
    settle(figure)
    return figure


@house
def curves(section: Section, dress: Mapping[str, Look]) -> Figure | None:
    """A figure of the metrics that were recorded by step or epoch; None where none was."""
    panels = list(dict.fromkeys((metric, place) for metric, place, _ in section.points))
    if not panels:
        return None
    names = [name for name in dress if any(name == key[2] for key in section.points)]
    width = 4.4 * len(panels) + 0.6
    columns = max(1, min(len(names), int(width / (0.9 + max(map(len, names)) / 12))))
    figure = new_figure(width, 3.8 + 0.2 * math.ceil(len(names) / columns), f"{section.title}: training")
    for axes, (metric, place) in zip(grid(figure, 1, len(panels), sharey=False), panels, strict=True):
        for name in names:
            axes.add_line(_line(section.points.get((metric, place, name), {}), name, dress[name]))
        axes.autoscale_view()
        axes.set_xlabel(PLACES[place])
        axes.set_ylabel(label(metric, METRICS[metric].unit))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles = [_line({}, name, dress[name]) for name in names]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=4)
    settle(figure)
    return figure


@house
def png(figure: Figure) -> bytes:
    """The bytes of the figure as PNG, without a date or a version of the software: the same each time."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


def save(figure: Figure, path: str | Path) -> None:
    """Write the figure as PNG.

    Raises:
        OSError: The file cannot be written.
    """
    Path(path).write_bytes(png(figure))


def new_figure(width: float, height: float, title: str) -> Figure:
    """An empty figure of this width and height in inches, with its title at the upper left."""
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08, wspace=0.03, hspace=0.04)
    figure = Figure(figsize=(width, height), dpi=DPI, layout=layout)
    wrapped = textwrap.fill(plain(title), int(_LETTERS * width))
    figure.suptitle(wrapped, x=0.01, ha="left", fontsize=12, fontweight="bold")
    return figure


def settle(figure: Figure) -> None:
    """Lay the figure out once: if it were laid out again at each saving, it could move by a pixel."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def grid(figure: Figure, down: int, across: int, sharey: bool | Literal["row"]) -> list[Axes]:
    """Panels in rows and columns, row after row.

    Args:
        figure: Figure that they are added to.
        down: Number of rows.
        across: Number of columns.
        sharey: Whether all panels share the vertical axis; "row" for the panels of a row.
    """
    return list(figure.subplots(down, across, sharey=sharey, squeeze=False).flat)


def _points(section: Section, cost: str) -> dict[str, tuple[Record, Record]]:
    pairs = {
        name: (record, section.cells[("test_accuracy", name)])
        for (metric, name), record in section.cells.items()
        if metric == cost and ("test_accuracy", name) in section.cells
    }
    return {name: pair for name, pair in pairs.items() if all(math.isfinite(record.value) for record in pair)}


def _ends(record: Record) -> tuple[float, float]:
    """Both ends of the error bar of a score: of the interval of its difference, or else of its spread."""
    if record.interval:
        base = reference(record)
        return base + record.interval[0], base + record.interval[1]
    half = (record.spread or 0) / 2
    return record.value - half, record.value + half


def _span(spots: Iterable[Spot]) -> tuple[float, float]:
    """Ends of an axis of percentages that spans every bar, at least `LEAST_SPAN` points, and little above 100."""
    ends = [end for spot in spots for end in (spot.low, spot.y, spot.high)]
    low, high = min(ends), max(ends)
    short = max(0.0, LEAST_SPAN - (high - low)) / 2
    margin = 0.12 * max(high - low, LEAST_SPAN)
    low, high = low - short - margin, high + short + margin
    return low, min(high, 100 + 0.05 * (100 - low))


def _estimated(records: Iterable[Record]) -> str:
    return ", estimated" if any(record.source == "estimated" for record in records) else ""


def _rated(section: Section, record: Record) -> bool:
    """Whether the record can be drawn as a bar: it is finite and compared with the baseline of its section."""
    finite = math.isfinite(record.value) and (record.ratio or 0) > 0
    return finite and record.to == section.baseline and change(section, record).change != ""


def _bar(axes: Axes, place: int, section: Section, record: Record | None, look: Look, percent: bool) -> None:
    """Draw a bar from the baseline, with its figure to the right of both."""
    start = 0.0 if percent else 1.0
    if record is None or record.ratio is None or not _rated(section, record):
        end, text, colour = start, "no ratio" if record else "not measured", GREY
        ends: Sequence[float] = [end]
    else:
        end = record.value - reference(record) if percent else record.ratio
        text, colour = change(section, record).change, "black"
        ends = record.interval if record.interval and percent else [end]
    axes.barh(place, end - start, 0.7, left=start, color=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0)
    axes.plot(ends, [place] * len(ends), color="black", linewidth=1.2, solid_capstyle="butt")
    at = (max(start, end, *ends), place)
    blank = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
    axes.annotate(text, at, (4, 0), textcoords="offset points", va="center", fontsize=8, color=colour, bbox=blank)


def scale_times(axes: Axes, values: Sequence[float]) -> None:
    """Set the logarithmic scale that all panels of a figure share, with room for the figures beside the bars.

    Args:
        axes: Panel whose scale is set.
        values: Ratios of all panels.
    """
    low, high = math.log2(min(1, *values)), math.log2(max(2, *values))
    span = (high - low) / 0.62
    axes.set_xscale("log", base=2)
    axes.set_xlim(2 ** (low - 0.04 * span), 2 ** (high + 0.34 * span))
    step = max(1, math.ceil(span / 5))
    powers = range(step * math.ceil(low / step), math.floor(high + 0.34 * span) + 1, step)
    axes.set_xticks([2.0**power for power in powers], [f"{2.0**power:g}x" for power in powers])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlabel("times better (x)", fontsize=8)


def _scale_points(axes: Axes, records: Iterable[Record]) -> None:
    ends = [end for record in records for end in (record.value - reference(record), *(record.interval or ()))]
    low, high = min(-1, *ends), max(1, *ends)
    span = (high - low) / 0.62
    axes.set_xlim(low - 0.04 * span, high + 0.34 * span)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.axvline(0, color="black", linewidth=1)
    axes.set_xlabel("difference (points)", fontsize=8)


def _head(axes: Axes, section: Section, metric: str) -> None:
    """Write the metric as title, and below it the baseline's value."""
    base = section.cells.get((metric, section.baseline or ""))
    cells = [record for (name, _), record in section.cells.items() if name == metric]
    axes.set_title(METRICS[metric].label, loc="left", pad=16, fontsize=9.5, fontweight="bold")
    if base:
        unit, factor = scale([record.value for record in cells], METRICS[metric].unit)
        text = f"baseline {number(base.value / factor)} {unit}{_estimated(cells)}"
        axes.annotate(text, (0, 1), (0, 4), "axes fraction", textcoords="offset points", fontsize=8, color=GREY)


def _line(points: Mapping[float, float], name: str, look: Look) -> Line2D:
    every = max(1, len(points) // 10)
    return Line2D(
        list(points),
        list(points.values()),
        label=plain(name),
        color=look.colour,
        linestyle=look.line,
        marker=look.marker,
        markersize=5,
        # Variants have their markers at different steps, where there are enough steps.
        markevery=(MARKERS.index(look.marker) % every, every),
    )


def _words(kind: str, section: Section) -> tuple[str, str]:
    """Caption of a picture, and its description."""
    values: dict[str, list[str]] = {}
    if kind == "accuracy":
        for cost in COSTS:
            for name, (x, y) in _points(section, cost).items():
                text = f"{name} {y.value:.1f} % for {number(x.value)} {x.unit}"
                values.setdefault(METRICS[cost].label, []).append(text)
        caption = (
            "Test accuracy against what it costs. Level lines through a marker: interquartile range of the repeats."
        )
        if any(metric == "test_accuracy" and record.interval for (metric, _), record in section.cells.items()):
            caption += (
                f" Upright lines: 95 % interval of the difference from {section.baseline}, the dotted line; one that "
                "crosses it is within noise."
            )
        return f"{section.title}. {caption}", f"Scatter plot of test accuracy against cost. {_listed(values)}"
    if kind == "ratios":
        for (metric, name), record in section.cells.items():
            if _rated(section, record):
                text = f"{name} {change(section, record).change}"
                values.setdefault(METRICS[metric].label, []).append(text)
        caption = (
            f"Each measure against {section.baseline}: bars to the right are better. Ratios on a logarithmic scale."
        )
        if any(" ~" in text for texts in values.values() for text in texts):
            caption += " ~: within noise."
        if any(record.interval for record in section.cells.values()):
            caption += " Lines through bars: 95 % interval of the difference."
        return f"{section.title}. {caption}", f"Bar chart of the change against {section.baseline}. {_listed(values)}"
    for (metric, _, name), points in section.points.items():
        values.setdefault(METRICS[metric].label, []).append(f"{name} {number(list(points.values())[-1])}")
    return f"{section.title}. The course of training.", f"Line chart of training. At the end: {_listed(values)}"


def _listed(values: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{name}: {', '.join(texts)}" for name, texts in values.items()) + "."


def _free(text: str, taken: Iterable[str]) -> str:
    """The text as a file name, with a number where the name is taken."""
    stem = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:80]
    names = (stem if number == 1 else f"{stem}-{number}" for number in count(1))
    return next(name for name in names if name not in taken)
