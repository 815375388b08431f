"""A value for each position of a region, with names of what is known there."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from greenformers.report.plot import COLOURS, grid, house, new_figure, settle


@house
def track(
    title: str, start: int, values: Sequence[float], names: Mapping[int, str], *, what: str = "Importance"
) -> Figure:
    """Draw it.

    Args:
        title: of the picture.
        start: first position, from 1.
        values: of the positions.
        names: of known variants, by position; those outside are left out.
        what: the values are.
    """
    figure = new_figure(9.0, 3.6, title)
    axes = grid(figure, 1, 1, sharey=False)[0]
    positions = range(start, start + len(values))
    axes.fill_between(positions, values, step="mid", linewidth=0, color=COLOURS[1])
    top = max(values, default=0.0) or 1.0
    axes.set_ylim(min(0.0, min(values, default=0.0)), 1.35 * top)
    for place, name in names.items():
        if place in positions:
            axes.axvline(place, color="0.6", linewidth=0.6, zorder=0)
            axes.text(place, 1.32 * top, name, rotation=90, ha="right", va="top", fontsize="x-small")
    axes.set_xlabel("Position")
    axes.set_ylabel(what)
    axes.ticklabel_format(axis="x", useOffset=False, style="plain")
    settle(figure)
    return figure
