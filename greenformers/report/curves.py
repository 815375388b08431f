"""Curves: panels of lines, for a training run and for studies of one quantity against another."""

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from greenformers.report.names import name_lines
from greenformers.report.plot import grid, house, looks, new_figure, settle

Points = Sequence[tuple[float, float]]


class Panel(NamedTuple):
    """One panel: what its axes are, and its lines by name.

    Attributes:
        x: label of the horizontal axis.
        y: label of the vertical axis.
        lines: name to points (x, y).
        doubling: the horizontal axis is logarithmic, with ticks at the points.
        title: above it.
    """

    x: str
    y: str
    lines: Mapping[str, Points]
    doubling: bool = False
    title: str = ""


@house
def line_panels(title: str, panels: Sequence[Panel], *, logarithmic: bool = False, across: int | None = None) -> Figure:
    """Panels of lines with their names at the ends; a line with few points has markers.

    Args:
        title: of the whole.
        panels: from left to right.
        logarithmic: the vertical axes are.
        across: panels in a row, which share their vertical axis; by default all are in one row, each with its own.
    """
    down, columns = (1, len(panels)) if across is None else (ceil(len(panels) / across), across)
    figure = new_figure(4.6 * columns + 0.6, 3.7 * down + 0.4, title)
    for axes, panel in zip(grid(figure, down, columns, sharey="row" if across else False), panels, strict=True):
        for (name, points), look in zip(panel.lines.items(), looks(panel.lines).values(), strict=True):
            xs, ys = zip(*points, strict=True) if points else ((), ())
            marker = look.marker if len(points) <= 12 else None
            axes.plot(xs, ys, label=name, color=look.colour, linestyle=look.line, marker=marker, markersize=5)
        if panel.doubling:
            axes.set_xscale("log", base=2)
            axes.set_xticks(sorted({x for points in panel.lines.values() for x, _ in points}))
            axes.xaxis.set_major_formatter(ScalarFormatter())
        if logarithmic:
            axes.set_yscale("log")
        axes.set_title(panel.title, loc="left", fontsize=9.5, fontweight="bold")
        axes.set_xlabel(panel.x)
        axes.set_ylabel(panel.y)
    # When all are drawn: those that share an axis move each other's ends.
    for axes, panel in zip(figure.axes, panels, strict=True):
        if len(panel.lines) > 1:
            name_lines(axes)
    settle(figure)
    return figure


def run_curves(name: str, log: Sequence[Mapping[str, float]]) -> Figure | None:
    """The loss and the validation scores of a run, by step; None where nothing was logged."""
    series: dict[str, list[tuple[float, float]]] = {}
    for entry in log:
        for key, value in entry.items():
            if key == "loss" or key.startswith("eval_"):
                series.setdefault(key, []).append((entry["step"], value))
    losses = {label: series[key] for key, label in (("loss", "training"), ("eval_loss", "validation")) if key in series}
    panels = [Panel("Step", "Loss", losses)] if losses else []
    for key, points in series.items():
        if key not in ("loss", "eval_loss"):
            panels.append(Panel("Step", f"Validation {key.removeprefix('eval_')}", {key: points}))
    return line_panels(f"Run {name}", panels) if panels else None


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG; the same figure gives the same bytes."""
    figure.savefig(path, metadata={"Software": None})
