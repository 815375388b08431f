"""Placement of names beside the points and lines of a plot, where they hide nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

GREY = "#595959"
# Places for the name of a marker, nearest first: offsets in points, and alignment.
_AROUND = tuple(
    (radius * x, radius * y, horizontal, vertical)
    for radius in (9, 16, 26, 40, 60)
    for x, y, horizontal, vertical in (
        (1, 0, "left", "center"),
        (-1, 0, "right", "center"),
        (0, 1, "center", "bottom"),
        (0, -1, "center", "top"),
        (0.7, 0.7, "left", "bottom"),
        (0.7, -0.7, "left", "top"),
        (-0.7, 0.7, "right", "bottom"),
        (-0.7, -0.7, "right", "top"),
    )
)


def broken(name: str, letters: int = 16) -> str:
    """The name on lines of at most `letters` characters where it can be broken, which is after + and _."""
    lines = [""]
    for part in re.findall(r"[^+_]+[+_]?", name):
        if lines[-1] and len(lines[-1]) + len(part) > letters:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


class Spot(NamedTuple):
    """A point of a plot with its error bars, in data coordinates.

    Attributes:
        x: Horizontal position.
        y: Vertical position.
        dx: Half the length of the horizontal bar.
        low: Lower end of the vertical bar.
        high: Upper end of the vertical bar.
    """

    x: float
    y: float
    dx: float
    low: float
    high: float


def name_points(axes: Axes, spots: Mapping[str, Spot], renderer: RendererBase) -> None:
    """Write each variant's name at the nearest place around its point where it hides no marker, bar or name.

    Args:
        axes: Panel whose points and scales are all drawn.
        spots: Points by variant.
        renderer: Renderer that measures the texts.
    """
    taken = [box for spot in spots.values() for box in _boxes(axes, spot)]
    for name, spot in sorted(spots.items(), key=lambda item: -len(item[0])):  # the longest has the fewest places
        text = axes.annotate(
            plain(name),
            spot[:2],
            (0, 0),
            textcoords="offset points",
            arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 6},
        )
        extent = partial(_extent, text, renderer)
        room = axes.get_window_extent(renderer)
        best = min(_AROUND, key=lambda place: _crowding(extent(place), room, taken))
        taken.append(extent(best))
        if text.arrow_patch and math.hypot(*best[:2]) < 20:
            text.arrow_patch.set_visible(False)


def _boxes(axes: Axes, spot: Spot) -> list[Bbox]:
    """The boxes that a point covers, in pixels: of its marker and of its bars."""
    x, y, dx, low, high = spot
    ends = axes.transData.transform([(x, y), (x - dx, y), (x + dx, y), (x, low), (x, high)])
    return [Bbox([ends[0], ends[0]]).padded(10), Bbox(ends[1:3]).padded(2), Bbox(ends[3:]).padded(2)]


def _extent(text: Annotation, renderer: RendererBase, place: tuple[float, float, str, str]) -> Bbox:
    """The box that the text covers, in pixels, after it is moved to this place."""
    text.set(position=place[:2], horizontalalignment=place[2], verticalalignment=place[3])
    text.update_positions(renderer)
    return Text.get_window_extent(text, renderer)


def _crowding(box: Bbox, room: Bbox, taken: Sequence[Bbox]) -> int:
    """Number of taken boxes that this box overlaps; a box that leaves the panel counts more than all of them."""
    box = box.padded(3)
    outside = box.x0 < room.x0 or box.x1 > room.x1 or box.y0 < room.y0 or box.y1 > room.y1
    return box.count_overlaps(taken) + outside * (len(taken) + 1)


def spread(places: Sequence[float], gap: float, low: float = 0.0, high: float = 1.0) -> list[float]:
    """Places moved apart as little as possible, so that they are at least `gap` apart, in the same order.

    Args:
        places: Places in any order.
        gap: Least distance of two places.
        low: Least place that may be given.
        high: Greatest place that may be given.
    """
    order = sorted(range(len(places)), key=places.__getitem__)
    blocks: list[tuple[float, int]] = []  # close places move together, around their mean: its sum and count
    for rank, index in enumerate(order):
        total, count = places[index] - rank * gap, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            before, more = blocks.pop()
            total, count = total + before, count + more
        blocks.append((total, count))
    most = high - gap * (len(places) - 1)
    levels = [min(max(total / count, low), most) for total, count in blocks for _ in range(count)]
    spaced = [0.0] * len(places)
    for rank, index in enumerate(order):
        spaced[index] = levels[rank] + rank * gap
    return spaced


def name_lines(axes: Axes, gap: float = 0.05) -> None:
    """Write the name of each line at the right of the panel, at the height where it ends, joined by its colour.

    Args:
        axes: Panel whose lines and scales are all drawn.
        gap: Least distance of two names, as a share of the panel's height.
    """
    axes.autoscale_view()
    ends = {}
    for line in axes.get_lines():
        points = [tuple(map(float, point)) for point in np.asarray(line.get_xydata())]
        if points and not str(line.get_label()).startswith("_"):
            ends[line] = points[-1][0], points[-1][1]
    inside = axes.transData + axes.transAxes.inverted()
    heights = spread([float(inside.transform(end)[1]) for end in ends.values()], gap)
    for (line, end), height in zip(ends.items(), heights, strict=True):
        leader = {"arrowstyle": "-", "color": line.get_color(), "linewidth": 0.8, "relpos": (0, 0.5)}
        axes.annotate(
            plain(str(line.get_label())), end, (1.06, height), "data", "axes fraction", va="center", fontsize=8,
            arrowprops=leader | {"shrinkA": 0, "shrinkB": 0},
        )  # fmt: skip


def plain(text: str) -> str:
    """The text with its dollar signs escaped, which matplotlib would read as mathematics."""
    return text.replace("$", r"\$")
