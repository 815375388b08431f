"""Values along a genomic region, with the names of known variants."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from greenformers.report.names import spread
from greenformers.report.plot import COLOURS, grid, house, new_figure, settle

_ROOM = 0.026  # share of the width for an upright name


@house
def track(
    title: str,
    start: int,
    values: Sequence[float],
    marks: Mapping[int, tuple[str, float]],
    *,
    each: str = "Each position",
    marked: str = "Named variants",
    quantity: str = "Importance",
) -> Figure:
    """A figure of the values of all positions, and over them the values of the positions that have names.

    Args:
        title: Title of the figure.
        start: First position, counted from 1.
        values: Value of each position.
        marks: Name and value of each named variant, by position; those outside the region are left out.
        each: Legend of `values`.
        marked: Legend of the values of `marks`.
        quantity: Label of the vertical axis.
    """
    figure = new_figure(9.0, 3.9, title)
    axes = grid(figure, 1, 1, sharey=False)[0]
    positions = range(start, start + len(values))
    axes.fill_between(positions, values, step="mid", linewidth=0, color=COLOURS[6], label=each)
    shown = {place: mark for place, mark in marks.items() if place in positions}
    scores = [score for _, score in shown.values()]
    top = max([*values, *scores], default=0.0) or 1.0
    axes.set_xlim(start - 0.5, start + max(1, len(values)) - 0.5)
    axes.set_ylim(min(0.0, min(values, default=0.0)), 1.05 * top)
    if shown:
        stems = axes.stem(list(shown), scores, linefmt=COLOURS[1], markerfmt="o", basefmt=" ", label=marked)
        stems.markerline.set(markersize=4, color=COLOURS[1])
    shares = [(place - start + 0.5) / len(values) for place in shown]
    leader = {"arrowstyle": "-", "color": "0.6", "linewidth": 0.6, "relpos": (0.5, 0), "shrinkA": 0}
    for (place, (name, score)), share in zip(shown.items(), spread(shares, _ROOM, 0.01, 0.99), strict=True):
        axes.annotate(
            name, (place, score), (share, 1.06), "data", "axes fraction", rotation=90, ha="center", va="bottom",
            fontsize="x-small", arrowprops=leader,
        )  # fmt: skip
    axes.set_xlabel("Position")
    axes.set_ylabel(quantity)
    axes.ticklabel_format(axis="x", useOffset=False, style="plain")
    figure.legend(loc="outside lower right", ncols=2)
    settle(figure)
    return figure
