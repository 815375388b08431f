"""Values along a genomic region, below those of its variants, with their names."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from greenformers.report.names import spread
from greenformers.report.plot import COLOURS, grid, house, new_figure, settle

_ROOM = 0.026  # share of the width for an upright name
_NAMED = int(0.98 / _ROOM)  # names that have room beside each other


@house
def track(
    title: str,
    start: int,
    values: Sequence[float],
    marks: Mapping[int, tuple[str, float]],
    *,
    each: str = "Each position",
    marked: str = "Named variants",
    quantities: tuple[str, str] = ("Importance", "Value"),
) -> Figure:
    """A figure of two panels: variants with their names, and below them the values of all positions.

    Each panel has a scale of its own, as the two are different quantities.

    Args:
        title: Title of the figure.
        start: First position, counted from 1.
        values: Value of each position.
        marks: Name and value of each variant, by position; those outside the region are left out. Where there are too
            many names for the width, those with the largest values are written.
        each: Legend of `values`.
        marked: Legend of the values of `marks`.
        quantities: Labels of the vertical axes, the one of the variants first.
    """
    figure = new_figure(9.0, 4.8, title)
    axes, below = grid(figure, 2, 1, sharey=False)
    positions = range(start, start + len(values))
    below.fill_between(positions, values, step="mid", linewidth=0, color=COLOURS[6], label=each)
    below.set_ylim(min(0.0, min(values, default=0.0)), 1.05 * (max(values, default=0.0) or 1.0))
    shown = {place: mark for place, mark in marks.items() if place in positions}
    scores = [score for _, score in shown.values()]
    axes.set_ylim(0.0, 1.05 * (max(scores, default=0.0) or 1.0))
    if shown:
        stems = axes.stem(list(shown), scores, linefmt=COLOURS[1], markerfmt="o", basefmt=" ", label=marked)
        stems.markerline.set(markersize=4, color=COLOURS[1])
    named = sorted(shown, key=lambda place: -shown[place][1])[:_NAMED]
    shares = [(place - start + 0.5) / len(values) for place in named]
    leader = {"arrowstyle": "-", "color": "0.6", "linewidth": 0.6, "relpos": (0.5, 0), "shrinkA": 0}
    for place, share in zip(named, spread(shares, _ROOM, 0.01, 0.99), strict=True):
        axes.annotate(
            shown[place][0], (place, shown[place][1]), (share, 1.09), "data", "axes fraction", rotation=90, ha="center",
            va="bottom", fontsize="x-small", arrowprops=leader,
        )  # fmt: skip
    for panel, quantity in zip((axes, below), quantities, strict=True):
        panel.set_xlim(start - 0.5, start + max(1, len(values)) - 0.5)
        panel.set_ylabel(quantity)
        panel.ticklabel_format(axis="x", useOffset=False, style="plain")
    axes.tick_params(labelbottom=False)
    below.set_xlabel("Position")
    figure.legend(loc="outside lower right", ncols=1)
    settle(figure)
    return figure
