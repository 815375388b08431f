"""Pictures of dashed paths, drawn after Linsley 2018, arXiv:1805.08315, and Kim 2020, arXiv:1906.01558.

A picture has two long paths, short ones that distract, and two discs: both on the ends of one long path, or one on an
end of each. Paths grow dash by dash. With dashes of length l, half the gap between them m, the next dash turns about
the point that lies m ahead of the last one, and begins m ahead of that point, by

    P(turn) ~ free(turn) cos^2(min(c |turn|, pi / 2))

where free(turn) is 0 if the dash would come nearer than 2 m to any other, or leave the picture, else the square of the
share of the way ahead that is free; the larger c, the straighter the path. All pictures of a batch grow together: a
mask has the places that are too near to the dashes of each. Pictures whose long paths find no place are dropped.

Unlike the published generator, free(turn) looks ahead, so that fewer paths run into others; all dashes are equally
bright; and the label can be told from the paths alone. It is a toss that comes after them: one disc is on an end of a
path, the other on that path's other end (1) or on an end of the other path (0). Pictures in which these two ends are
not about as far from the first disc, and from the middle, are dropped, as else the distance of the discs would tell, or
that paths grow from the middle outwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from greenformers.data._images import Split, Splits

PEAK = 255
CLASSES = 2
PARTS = ("train", "valid", "test")
DASHES = range(6, 17)  # of a long path; longer ones hardly find a place
BATCH = 1024  # pictures that grow together
FRAME = 1.0  # pixels at the edge that stay empty
ALIKE = (1 / 20, 1 / 8)  # share of the side by which two ends may differ in distance from the first and the middle
FADED = 0.9  # of a dash, where a disc has 1
AHEAD = 3  # dashes and gaps ahead of a dash that count for how free its way is
LEAST = 1e-5  # weight of a way that is not free at all
TRIES = 4  # further attempts at paths that distract, after which there are fewer of them

Floats = np.ndarray
"""Coordinates in pixels, row before column, float64; a dash is its begin and end, (..., 2, 2)."""


@dataclass(frozen=True)
class Geometry:
    """Sizes in a picture, in pixels.

    Attributes:
        side: Side of the picture.
        length: Length l of a dash.
        thickness: Thickness of a dash.
        margins: Half the gap between dashes, m; as many pictures have each.
        apart: Distance between the first ends of the long paths; that of the first one is twice as far from the edge.
        straight: The factor c of a turn.
        radius: Radius of a disc.
        distracting: Dashes of the paths that distract, all together.
        cells: Places of the mask along a pixel.
    """

    side: int
    length: float
    thickness: float
    margins: tuple[float, ...]
    apart: float
    straight: float
    radius: float
    distracting: int
    cells: int


GEOMETRIES = {
    32: Geometry(32, 2, 0.5, (1,), 7, 1.0, 1.5, 20, 2),
    64: Geometry(64, 3, 1.0, (1.5,), 12, 1.4, 2, 28, 1),
    128: Geometry(128, 5, 1.5, (2, 3), 20, 1.8, 3, 35, 1),
}
"""Sizes by the side: of 32 and 128 those of Long Range Arena, of 64 between them."""


def generate(name: str, side: int, dashes: int, sizes: Sequence[int], seed: int) -> Splits:
    """Draw pictures; as many of each label in every split, or one more of label 0.

    Args:
        name: Name of the data set.
        side: Side of a picture in pixels, one of `GEOMETRIES`.
        dashes: Dashes of a long path.
        sizes: Numbers of pictures to train, validate and test with.
        seed: Seed of the draw.

    Raises:
        ValueError: An argument is out of its range.
    """
    if side not in GEOMETRIES:
        raise ValueError(f"side must be one of {', '.join(map(str, GEOMETRIES))}, got {side}")
    if dashes not in DASHES:
        raise ValueError(f"dashes must be in {DASHES[0]}..{DASHES[-1]}, got {dashes}")
    for part, size in zip(PARTS, sizes, strict=True):
        if size < 1:
            raise ValueError(f"{part} must be at least 1, got {size}")
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    source = np.random.default_rng(seed)
    labels = np.concatenate([source.permutation(np.arange(size) % CLASSES) for size in sizes])
    pictures = np.empty((len(labels), side, side), np.uint8)
    margins = GEOMETRIES[side].margins
    places = source.permutation(len(labels))
    for number, margin in enumerate(margins):
        share = places[number :: len(margins)]
        done = 0
        while done < len(share):
            drawn = _batch(source, GEOMETRIES[side], margin, dashes, len(share) - done)
            at = share[done : done + len(drawn)]
            pictures[at] = drawn.render(labels[at])
            done += len(at)
    return Splits(name, CLASSES, *_ordered(pictures, labels, sizes))


def _ordered(pictures: np.ndarray, labels: np.ndarray, sizes: Sequence[int]) -> list[Split]:
    """The splits in the order of the fields of `Splits`: train, test, valid."""
    ends = np.cumsum(sizes)[:-1]
    train, valid, test = (
        Split(torch.from_numpy(pixels).flatten(1), torch.from_numpy(part).long(), PEAK)
        for pixels, part in zip(np.split(pictures, ends), np.split(labels, ends), strict=True)
    )
    return [train, test, valid]


@dataclass(frozen=True, eq=False)
class _Paths:
    """Paths of a batch of B pictures.

    Attributes:
        geometry: Sizes in the pictures.
        dashes: All dashes (B, S, 2, 2); NaN where a picture has fewer.
        discs: The first end of a path, its last end, and the last end of the other path (B, 3, 2).
    """

    geometry: Geometry
    dashes: Floats
    discs: Floats

    def __len__(self) -> int:
        return len(self.dashes)

    def render(self, labels: np.ndarray) -> np.ndarray:
        """The pictures (B, side, side), uint8, with the discs that labels (B,) ask for."""
        side, thickness, radius = self.geometry.side, self.geometry.thickness, self.geometry.radius
        raster = _Raster(side, 1, self.geometry.length / 2 + radius + thickness + 2)
        values = raster.zeros(len(self), np.float32)
        for number in range(self.dashes.shape[1]):
            at = np.flatnonzero(np.isfinite(self.dashes[:, number, 0, 0]))
            # The share of a pixel that a line covers, whatever its direction; 1 in the middle.
            where, distance = raster.near(at, self.dashes[at, number], thickness / 2 + 0.5)
            covered = np.clip((thickness / 2 + 0.5 - distance) / min(1, thickness), 0, 1)
            values[where] = np.maximum(values[where], FADED * covered)
        every = np.arange(len(self))
        for disc in (self.discs[:, 0], np.where(labels[:, None] == 1, self.discs[:, 1], self.discs[:, 2])):
            where, distance = raster.near(every, np.stack([disc, disc], 1), radius + 0.5)
            values[where] = np.maximum(values[where], np.clip(radius + 0.5 - distance, 0, 1))
        return (PEAK * raster.inside(values)).round().astype(np.uint8)


class _Raster:
    """A grid over pictures, with room around for what reaches over their edges.

    Args:
        side: Side of the pictures in pixels.
        cells: Cells along a pixel.
        reach: Pixels around a picture that are part of the grid.
    """

    def __init__(self, side: int, cells: int, reach: float) -> None:
        self.side, self.cells, self.around = side, cells, math.ceil(reach * cells) + 1

    def zeros(self, count: int, kind: type) -> np.ndarray:
        """The grids of so many pictures."""
        width = self.side * self.cells + 2 * self.around
        return np.zeros((count, width, width), kind)

    def inside(self, values: np.ndarray) -> np.ndarray:
        """The part of grids (B, W, W) that is picture."""
        return values[:, self.around : -self.around, self.around : -self.around]

    def cell(self, points: Floats) -> np.ndarray:
        """Row and column (..., 2) of the cells of points (..., 2); of those beyond the grid the nearest ones."""
        width = self.side * self.cells + 2 * self.around
        return np.clip(np.floor(points * self.cells).astype(np.int64) + self.around, 0, width - 1)

    def middle(self, cell: np.ndarray) -> Floats:
        """The middles of rows or columns of cells, in pixels."""
        return (cell - (self.around - 0.5)) / self.cells

    def near(self, at: np.ndarray, dash: Floats, reach: float) -> tuple[tuple[np.ndarray, ...], Floats]:
        """The cells in a square around each dash that has all cells within `reach` of it.

        Args:
            at: Numbers of the pictures (b,).
            dash: A dash of each (b, 2, 2).
            reach: Distance in pixels.

        Returns:
            Their place (b, w, w) in grids (B, W, W), and the distance of their middles from the dash.
        """
        half = np.hypot(*(dash[0, 1] - dash[0, 0])) / 2 + reach if len(dash) else reach
        corner = np.floor((dash.mean(1) - half) * self.cells).astype(np.int64) + self.around  # (b, 2)
        span = np.arange(math.ceil(2 * half * self.cells) + 1)
        rows, columns = corner[:, 0, None, None] + span[:, None], corner[:, 1, None, None] + span
        return (at[:, None, None], rows, columns), _distance(
            self.middle(rows), self.middle(columns), dash[:, None, None]
        )


def _distance(rows: Floats, columns: Floats, dash: Floats) -> Floats:
    """Distance of points in rows (...) and columns (...) from dashes (..., 2, 2)."""
    (top, left), (down, right) = (
        np.moveaxis(dash[..., 0, :], -1, 0),
        np.moveaxis(dash[..., 1, :] - dash[..., 0, :], -1, 0),
    )
    rows, columns = rows - top, columns - left
    share = np.clip((rows * down + columns * right) / np.maximum(down * down + right * right, 1e-12), 0, 1)
    return np.sqrt((rows - share * down) ** 2 + (columns - share * right) ** 2)


class _Growth:
    """Pictures that paths grow in, all at once.

    Args:
        source: Source of all draws.
        geometry: Sizes in the pictures.
        margin: Half the gap between dashes, m.
        count: Number of pictures.
    """

    def __init__(self, source: np.random.Generator, geometry: Geometry, margin: float, count: int) -> None:
        self.source, self.geometry, self.margin = source, geometry, margin
        self.reach = 2 * margin + geometry.thickness
        self.raster = _Raster(geometry.side, geometry.cells, geometry.length + self.reach)
        # How many dashes are too near to a cell; the frame counts as one.
        self.mask = self.raster.zeros(count, np.int8) + 1
        frame = math.ceil(FRAME * geometry.cells)
        self.raster.inside(self.mask)[:, frame:-frame, frame:-frame] = 0
        self.steps = margin + np.linspace(0, geometry.length, math.ceil(geometry.length * geometry.cells) + 1)
        self.ahead = self.steps[-1] + np.linspace(0, AHEAD * (geometry.length + 2 * margin), 4 * AHEAD + 1)[1:]

    def take(self, chosen: np.ndarray) -> None:
        """Keep the chosen pictures only."""
        self.mask = self.mask[chosen]

    def put(self, at: np.ndarray, dash: Floats) -> None:
        """Put a dash (b, 2, 2) into each of the pictures `at` (b,)."""
        where, distance = self.raster.near(at, dash, self.reach)
        self.mask[where] += (distance <= self.reach).astype(np.int8)

    def free(self, at: np.ndarray, points: Floats, last: Floats | None = None) -> np.ndarray:
        """Whether points (b, k, p, 2) are near to no dash, or only to the last one (b, 2, 2); (b, k, p)."""
        cells = self.raster.cell(points)
        near = self.mask[at[:, None, None], cells[..., 0], cells[..., 1]]
        if last is not None:
            rows, columns = np.moveaxis(self.raster.middle(cells), -1, 0)
            near = near - (_distance(rows, columns, last[:, None, None]) <= self.reach)
        return near <= 0

    def extend(self, at: np.ndarray, last: Floats) -> tuple[Floats, np.ndarray]:
        """The next dash (b, 2, 2) of a path after its last one, which pictures get, and whether there is one (b,)."""
        widest = math.pi / 2 / self.geometry.straight
        count = math.ceil(2 * widest * (self.geometry.length + self.margin))  # a pixel from end to end
        turns = (np.arange(count) + self.source.random((len(at), 1))) / count * 2 * widest - widest  # (b, k)
        along = last[:, 1] - last[:, 0]
        heading = np.arctan2(along[:, 0], along[:, 1])
        turning = last[:, 1] + self.margin * _ways(heading)
        ways = _ways(heading[:, None] + turns)[:, :, None]  # (b, k, 1, 2)
        points = turning[:, None, None] + ways * self.steps[:, None]  # (b, k, p, 2)
        free = self.free(at, points, last).all(-1)
        ahead = self.free(at, turning[:, None, None] + ways * self.ahead[:, None]).mean(-1)
        total = (free * (ahead**2 + LEAST) * np.cos(self.geometry.straight * turns) ** 2).cumsum(1)
        chosen = (total > self.source.random((len(at), 1)) * total[:, -1:]).argmax(1)
        alive = total[:, -1] > 0
        dash = points[np.arange(len(at)), chosen][:, [0, -1]]
        self.put(at[alive], dash[alive])
        return dash, alive

    def first(self, at: np.ndarray, end: Floats) -> tuple[Floats, np.ndarray]:
        """The first dash of a path from an end (b, 2) in any direction, as `extend` has it."""
        way = _ways(self.source.uniform(-math.pi, math.pi, len(at)))
        points = end[:, None] + way[:, None] * (self.steps - self.margin)[:, None]  # (b, p, 2)
        alive = np.asarray(self.free(at, points[:, None]).all(-1))[:, 0]
        dash = points[:, [0, -1]]
        self.put(at[alive], dash[alive])
        return dash, alive


def _ways(headings: Floats) -> Floats:
    """Unit vectors (..., 2) with headings (...)."""
    return np.stack([np.sin(headings), np.cos(headings)], -1)


def _batch(source: np.random.Generator, geometry: Geometry, margin: float, dashes: int, most: int) -> _Paths:
    """Paths of up to `most` pictures."""
    growth = _Growth(source, geometry, margin, min(BATCH, 32 * most))
    paths = _long(growth, dashes)  # (B, dashes, 2, 2, 2): picture, number, path, begin and end, row and column
    chosen, discs = _ends(growth, paths)
    chosen, discs = chosen[:most], discs[:most]
    growth.take(chosen)
    paths = paths[chosen].reshape(len(chosen), 2 * dashes, 2, 2)
    return _Paths(geometry, np.concatenate([paths, _short(growth, dashes // 3, len(chosen))], 1), discs)


def _long(growth: _Growth, dashes: int) -> Floats:
    """Two paths that grow in turn, in the pictures where both find a place; the growth keeps those."""
    geometry, source = growth.geometry, growth.source
    every = np.arange(len(growth.mask))
    paths = np.full((len(every), dashes, 2, 2, 2), np.nan)
    inner = geometry.side / 2 - 2 * geometry.apart
    for number in range(dashes):
        for path in range(2):
            if number:
                dash, alive = growth.extend(every, paths[:, number - 1, path])
            elif path:
                angle = source.uniform(0, 2 * math.pi, len(every))
                dash, alive = growth.first(every, paths[:, 0, 0, 0] + geometry.apart * _ways(angle))
            else:
                middle = geometry.side / 2 + source.uniform(-inner, inner, (len(every), 2))
                dash, alive = growth.first(every, middle)
            paths[:, number, path] = dash
            growth.take(alive)
            paths, every = paths[alive], every[: alive.sum()]
    return paths


def _ends(growth: _Growth, paths: Floats) -> tuple[np.ndarray, Floats]:
    """Numbers of the pictures that are kept, and their ends for discs: see `_Paths`."""
    ends = np.stack([paths[:, 0, :, 0], paths[:, -1, :, 1]], 1)  # (B, first or last, path, 2)
    corners = [(end, path) for end in range(2) for path in range(2)]
    discs = np.stack([np.stack([ends[:, e, p], ends[:, 1 - e, p], ends[:, 1 - e, 1 - p]], 1) for e, p in corners], 1)
    own, other = (np.linalg.norm(discs[:, :, end] - discs[:, :, 0], axis=-1) for end in (1, 2))  # (B, 4)
    geometry = growth.geometry
    outward = np.linalg.norm(discs - geometry.side / 2, axis=-1)  # (B, 4, 3)
    fit = np.abs(own - other) <= ALIKE[0] * geometry.side
    fit &= np.abs(outward[..., 1] - outward[..., 2]) <= ALIKE[1] * geometry.side
    fit &= np.minimum(own, other) > 2 * geometry.radius + 1
    chosen = (growth.source.random(fit.shape) * fit).argmax(1)
    numbers = np.flatnonzero(fit.any(1))
    return numbers, discs[numbers, chosen[numbers]]


def _short(growth: _Growth, dashes: int, count: int) -> Floats:
    """Paths that distract, (count, dashes of all of them, 2, 2), NaN where one found no place after some tries."""
    number = growth.geometry.distracting // dashes
    short = np.full((count, number, dashes, 2, 2), np.nan)
    done = np.zeros(count, np.int64)
    for _ in range(number + TRIES):
        at = np.flatnonzero(done < number)
        if not len(at):
            break
        before = growth.mask[at]
        path = np.full((len(at), dashes, 2, 2), np.nan)
        alive = np.arange(len(at))
        for step in range(dashes):
            if step:
                dash, free = growth.extend(at[alive], path[alive, step - 1])
            else:
                dash, free = growth.first(at[alive], _somewhere(growth, at))
            path[alive, step] = dash
            alive = alive[free]
        failed = np.setdiff1d(np.arange(len(at)), alive)
        growth.mask[at[failed]] = before[failed]
        short[at[alive], done[at[alive]]] = path[alive]
        done[at[alive]] += 1
    return short.reshape(count, number * dashes, 2, 2)


def _somewhere(growth: _Growth, at: np.ndarray) -> Floats:
    """A free place (b, 2) of each of the pictures `at`, any of them alike."""
    inside = growth.raster.inside(growth.mask[at])
    keys = growth.source.random(inside.shape, np.float32) * (inside <= 0)
    flat = keys.reshape(len(at), -1).argmax(1)
    cells = np.stack(np.unravel_index(flat, inside.shape[1:]), -1)
    return (cells + growth.source.random(cells.shape)) / growth.geometry.cells
