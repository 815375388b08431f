"""Connectivity matrices of sparse attention as a picture, and their density and cost as a table."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from rich import box
from rich.table import Table

from greenformers.measure.connectivity import KINDS, Connectivity, Matrices
from greenformers.report.plot import COLOURS, house, new_figure, settle

_COLOURS = (COLOURS[2], COLOURS[3], COLOURS[5])  # blue, green, orange, as in the survey's figure 16
_GRID_UP_TO = 64


@house
def figure(matrices: Matrices) -> Figure:
    """A figure of the matrices, layers from top to bottom and heads from left to right; equal ones are drawn once.

    Row i, column j of a matrix is marked where query i attends to key j.
    """
    panels = _different(matrices)
    rows, columns = len(panels), max(map(len, panels))
    drawn = new_figure(max(3.6, 2.7 * columns + 0.5), 2.9 * rows + 0.9, f"{matrices.name}, N {matrices.length:,}")
    places = drawn.subplots(rows, columns, squeeze=False)
    used = np.zeros(len(KINDS), dtype=bool)
    for row, line in zip(panels, places, strict=True):
        for axes in line[len(row) :]:
            axes.set_axis_off()
        for (title, head), axes in zip(row, line, strict=False):
            _matrix(axes, head, matrices.length)
            axes.set_title(f"{title}: {head.pairs / matrices.length**2:.1%} of all pairs", fontsize=8)
            used |= head.share.numpy().any((1, 2))
    names = [Patch(color=_COLOURS[at], label=KINDS[at]) for at in range(len(KINDS)) if used[at]]
    drawn.legend(handles=names, loc="outside lower center", ncols=len(names), fontsize=8)
    settle(drawn)
    return drawn


def _different(matrices: Matrices) -> list[list[tuple[str, Connectivity]]]:
    """Rows of panels, one for each layer: its heads that differ, by title; one row where all layers are alike."""
    layers: dict[int, list[Connectivity]] = {}
    for head in matrices.heads:
        layers.setdefault(head.layer, []).append(head)
    first = layers[0]
    if all(_alike(a, b) for heads in layers.values() for a, b in zip(heads, first, strict=True)):
        prefix = "" if len(layers) == 1 else "every layer, "
        return [_heads(first, prefix)]
    panels = [_heads(heads, f"layer {layer + 1}, ") for layer, heads in layers.items()]
    # Layers of head panel each stand side by side.
    return [[row[0] for row in panels]] if all(len(row) == 1 for row in panels) else panels


def _heads(heads: list[Connectivity], prefix: str) -> list[tuple[str, Connectivity]]:
    if len(heads) > 1 and all(_alike(head, heads[0]) for head in heads):
        return [(f"{prefix}every head", heads[0])]
    return [(f"{prefix}head {head.head + 1}", head) for head in heads]


def _alike(head: Connectivity, other: Connectivity) -> bool:
    return bool((head.share == other.share).all())


def _matrix(axes: Axes, head: Connectivity, length: int) -> None:
    share = head.share.numpy()
    cells = share.shape[1]
    # A cell with any visible pair can be seen; a cell of several pairs is darker the more of them are visible.
    strength = np.where(share.sum(0) > 0, 0.25 + 0.75 * np.clip(share.sum(0), 0, 1), 0.0)[..., None]
    mixed = np.einsum("kij,kc->ijc", share, np.array([to_rgb(colour) for colour in _COLOURS]))
    colour = mixed / np.maximum(share.sum(0), 1e-9)[..., None]
    axes.imshow(1 - strength * (1 - colour), extent=(0, length, length, 0), interpolation="nearest")
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(True)
    axes.tick_params(labelsize=7, length=2)
    axes.set_xlabel("key j", fontsize=8)
    axes.set_ylabel("query i", fontsize=8)
    if cells <= _GRID_UP_TO:
        for at in range(1, length):
            axes.axhline(at, color="white", linewidth=0.5)
            axes.axvline(at, color="white", linewidth=0.5)
    axes.plot((0, length), (0, length), color="#00000055", linewidth=0.7)


def table(matrices: Matrices) -> Table:
    """A table of each layer's visible pairs, density, and cost beside that of dense attention."""
    drawn = Table("layer", "pairs a query", "density", "cost", "of dense attention", box=box.SIMPLE)
    drawn.title = f"{matrices.name}, N {matrices.length:,}"
    for layer, count in enumerate(matrices.flops):
        pairs = [head.pairs for head in matrices.heads if head.layer == layer]
        mean = sum(pairs) / len(pairs) / matrices.length
        drawn.add_row(
            str(layer + 1),
            f"{mean:,.1f}",
            f"{mean / matrices.length:.2%}",
            _flop(count),
            f"{_flop(matrices.dense)} ({matrices.dense / count:.2g}x)",
        )
    return drawn


def _flop(count: int) -> str:
    return f"{count / 1e9:,.3g} GFLOP" if count >= 1e9 else f"{count / 1e6:,.3g} MFLOP"
