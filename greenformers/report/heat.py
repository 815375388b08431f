"""Heat maps over length and rank, with each number in its field; one scale and one colour bar for all panels."""

from collections.abc import Mapping, Sequence
from math import log2
from typing import NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from greenformers.report.plot import house, new_figure, settle

Field = tuple[int, int]
"""Length and rank: the row and the column of a field."""


class Heat(NamedTuple):
    """One panel of a figure.

    Attributes:
        title: Title above the panel.
        values: Values by length and rank; fields without a value stay empty.
    """

    title: str
    values: Mapping[Field, float]


class Scale(NamedTuple):
    """The scale of all numbers of a figure; blue is better.

    Attributes:
        words: Label of the colour bar.
        ratios: Whether numbers are ratios, on a logarithmic scale around 1, where more is better; otherwise they are
            differences, on a linear scale around 0, where less is better.
    """

    words: str
    ratios: bool = True


@house
def heat_maps(
    title: str, rows: Sequence[Sequence[Heat]], scale: Scale, across: str = "Rank", down: str = "Length N"
) -> Figure:
    """A figure of rows of panels, all over the same lengths and ranks, and in the same colours.

    Args:
        title: Title of the figure.
        rows: Panels of each row.
        scale: Scale of all numbers.
        across: Label of the horizontal axes.
        down: Label of the vertical axes.
    """
    fields = {field for row in rows for heat in row for field in heat.values}
    lengths, ranks = sorted({n for n, _ in fields}), sorted({r for _, r in fields})
    wide = max(map(len, rows))
    titles = [heat.title.splitlines() for row in rows for heat in row]
    width = max(0.8 + 0.45 * len(ranks), 0.3 + 0.08 * max(len(line) for title_ in titles for line in title_))
    height = 0.5 + 0.15 * max(map(len, titles)) + 0.27 * len(lengths)
    figure = new_figure(1.8 + wide * width, 0.9 + len(rows) * height, title)
    panels = figure.subplots(len(rows), wide, squeeze=False)
    norm, colours = _colours([heat for row in rows for heat in row], scale)
    for row, places in zip(rows, panels, strict=True):
        for axes in places[len(row) :]:
            axes.set_axis_off()
        for heat, axes in zip(row, places, strict=False):
            table = np.array([[heat.values.get((n, r), np.nan) for r in ranks] for n in lengths])
            axes.imshow(table, cmap=colours, norm=norm, aspect="auto")
            axes.grid(visible=False)
            axes.set_title(heat.title, fontsize=9)
            axes.set_xticks(range(len(ranks)), [str(r) for r in ranks])
            axes.set_yticks(range(len(lengths)), [str(n) for n in lengths])
            for (down_, across_), value in np.ndenumerate(table):
                if np.isfinite(value):
                    ink = _ink(colours(float(norm(value))))
                    axes.text(across_, down_, _short(value), ha="center", va="center", fontsize=7, color=ink)
        places[0].set_ylabel(down)
    for axes in panels[-1]:
        axes.set_xlabel(across)
    bar = figure.colorbar(ScalarMappable(norm, colours), ax=panels, fraction=0.03, aspect=30, pad=0.02)
    bar.set_label(scale.words)
    if scale.ratios:
        bar.ax.yaxis.set_major_locator(LogLocator(base=2, subs=(1,)))
        bar.ax.yaxis.set_minor_locator(NullLocator())
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x" if value >= 1 else _part(value)))
    settle(figure)
    return figure


def _colours(heats: Sequence[Heat], scale: Scale) -> tuple[Normalize, Colormap]:
    """Colours that reach equally far on both sides of the neutral value, so that equal shades are equal factors."""
    values = [value for heat in heats for value in heat.values.values() if np.isfinite(value)]
    if not scale.ratios:
        reach = max(map(abs, values), default=0.0) or 1.0
        return Normalize(-reach, reach), colormaps["RdBu_r"]
    reach = max((abs(log2(value)) for value in values if value > 0), default=0.0) or 1.0
    return LogNorm(2**-reach, 2**reach), colormaps["RdBu"]


def _ink(colour: tuple[float, float, float, float]) -> str:
    """The colour of text on a field: black on light fields, by relative luminance, and white on dark ones."""
    red, green, blue, _ = colour
    return "black" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.5 else "white"


def _part(value: float) -> str:
    return f"1/{1 / value:g}x"


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 9.95 else f"{value:.1f}" if abs(value) >= 0.995 else f"{value:.2f}"
