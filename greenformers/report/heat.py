"""Heat maps: panels of figures over two axes, each number written in its field."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.colors import Normalize, TwoSlopeNorm
from matplotlib.figure import Figure

from greenformers.report.plot import house, new_figure, settle

Field = tuple[int, int]
"""(row, column): length and rank."""


class Heat(NamedTuple):
    """One panel.

    Attributes:
        title: above it.
        values: by (length, rank); fields that are missing stay empty.
        neutral: the value between the two colours; None: one colour, from least to most.
        less_is_better: low values in the colour of what is better.
    """

    title: str
    values: Mapping[Field, float]
    neutral: float | None = 1.0
    less_is_better: bool = False


@house
def heat_maps(title: str, rows: Sequence[Sequence[Heat]], across: str = "Rank", down: str = "Length N") -> Figure:
    """Rows of panels, all over the same lengths and ranks."""
    fields = {field for row in rows for heat in row for field in heat.values}
    lengths, ranks = sorted({n for n, _ in fields}), sorted({r for _, r in fields})
    wide = max(map(len, rows))
    titles = [heat.title.splitlines() for row in rows for heat in row]
    width = max(0.8 + 0.45 * len(ranks), 0.3 + 0.08 * max(len(line) for title_ in titles for line in title_))
    height = 0.5 + 0.15 * max(map(len, titles)) + 0.27 * len(lengths)
    figure = new_figure(1.0 + wide * width, 0.9 + len(rows) * height, title)
    panels = figure.subplots(len(rows), wide, squeeze=False)
    for row, places in zip(rows, panels, strict=True):
        for axes in places[len(row) :]:
            axes.set_axis_off()
        for heat, axes in zip(row, places, strict=False):
            table = np.array([[heat.values.get((n, r), np.nan) for r in ranks] for n in lengths])
            axes.imshow(table, cmap="RdBu_r" if heat.less_is_better else "RdBu", norm=_norm(heat, table), aspect="auto")
            axes.grid(visible=False)
            axes.set_title(heat.title, fontsize=9)
            axes.set_xticks(range(len(ranks)), [str(r) for r in ranks])
            axes.set_yticks(range(len(lengths)), [str(n) for n in lengths])
            for (down_, across_), value in np.ndenumerate(table):
                if np.isfinite(value):
                    axes.text(across_, down_, _short(value), ha="center", va="center", fontsize=7, color="black")
        places[0].set_ylabel(down)
    for axes in panels[-1]:
        axes.set_xlabel(across)
    settle(figure)
    return figure


def _norm(heat: Heat, table: np.ndarray) -> Normalize:
    """Colours that stay light enough for black figures, with the neutral value in the middle."""
    known = table[np.isfinite(table)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    if heat.neutral is None:
        return Normalize(low - (high - low or 1.0), high + (high - low or 1.0))
    reach = max(high - heat.neutral, heat.neutral - low, 1e-9)
    below = max(heat.neutral - low, 0.25 * reach)
    above = max(high - heat.neutral, 0.25 * reach)
    return TwoSlopeNorm(heat.neutral, heat.neutral - 1.6 * below, heat.neutral + 1.6 * above)


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 9.95 else f"{value:.1f}" if abs(value) >= 0.995 else f"{value:.2f}"
