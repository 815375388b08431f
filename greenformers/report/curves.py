"""Panels of lines: the curves of a training run, and studies of one quantity against another."""

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
    """One panel of a figure: the labels of its axes, and its lines.

    Attributes:
        x: Label of the horizontal axis.
        y: Label of the vertical axis.
        lines: Points (x, y) of each line, by its name.
        doubling: Whether the horizontal axis is logarithmic, with ticks at the points.
        title: Title above the panel.
    """

    x: str
    y: str
    lines: Mapping[str, Points]
    doubling: bool = False
    title: str = ""


@house
def line_panels(title: str, panels: Sequence[Panel], *, logarithmic: bool = False, across: int | None = None) -> Figure:
    """A figure of panels of lines, each named at its end; a line with few points has markers.

    Args:
        title: Title of the figure.
        panels: Panels from left to right.
        logarithmic: Whether the vertical axes are logarithmic.
        across: Number of panels in a row, which share their vertical axis; None for one row of panels, each with an
            axis of its own.
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
    # Names come last: a later panel can still move the limits of an axis that it shares, and with them the ends.
    for axes, panel in zip(figure.axes, panels, strict=True):
        if len(panel.lines) > 1:
            name_lines(axes)
    settle(figure)
    return figure


def run_curves(name: str, log: Sequence[Mapping[str, float]]) -> Figure | None:
    """A figure of the loss and the validation scores of a training run, by step; None where nothing was logged.

    Args:
        name: Name of the run, in the title.
        log: Logged values by name, one entry for each step that was logged, with its number under "step".
    """
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
    """Write a figure as PNG; the same figure gives the same bytes.

    Raises:
        OSError: The file cannot be written.
    """
    figure.savefig(path, metadata={"Software": None})
