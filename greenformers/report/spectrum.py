"""The spectrum of attention as a table, a figure and a page. Linformer, Wang 2020, arXiv:2006.04768, figure 1."""

from collections.abc import Sequence
from math import ceil
from pathlib import Path

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich import box
from rich.table import Table

from greenformers.measure.record import Record
from greenformers.measure.spectrum import Spectrum
from greenformers.report import page
from greenformers.report.names import GREY
from greenformers.report.plot import LINES, Picture, house, new_figure, settle

_COLOURS = colormaps["viridis"]  # told apart under any colour blindness, and lighter the higher
_MOST = 16  # heads whose squares in the heat map have room for figures


@house
def figure(found: Spectrum, index: int, title: str) -> Figure:
    """Left the curves, one a layer over those of its heads; right, layer by head, their values at an index.

    Raises:
        ValueError: `index` is not in 1..N.
    """
    values = found.at(index)
    layers, heads = values.shape
    width = max(4.2, 0.36 * min(heads, _MOST) + 1.6)
    drawn = new_figure(4.6 + width, max(3.9, 0.26 * layers + 1.5), title)
    left, right = drawn.subplots(1, 2, width_ratios=[4.6, width])
    _curves(left, found, index)
    _heat_map(right, values.tolist(), index)
    settle(drawn)
    return drawn


def _curves(axes: Axes, found: Spectrum, index: int) -> None:
    places = range(1, found.length + 1)
    count = len(found.cumulative)
    for layer, heads in enumerate(found.cumulative):
        colour, line = _COLOURS(0.9 * layer / max(1, count - 1)), LINES[layer % len(LINES)]
        for head in heads:
            axes.plot(places, head.tolist(), color=colour, linewidth=0.4, alpha=0.35)
        mean, name = heads.mean(0).tolist(), f"layer {layer + 1}"
        axes.plot(places, mean, color=colour, linestyle=line, linewidth=1.8, label=name, zorder=3)
    axes.axvline(index, color=GREY, linewidth=0.8)
    axes.annotate(f"{index}", (index, 0), (3, 3), textcoords="offset points", fontsize=8, color=GREY)
    axes.set_xlim(0, found.length)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("Singular values, largest first")
    axes.set_ylabel("Normalised cumulative singular value")
    axes.legend(loc="lower right", fontsize=7, ncols=ceil(count / 8), handlelength=3)


def _heat_map(axes: Axes, values: Sequence[Sequence[float]], index: int) -> None:
    layers, heads = len(values), len(values[0])
    squares = axes.imshow(
        values, cmap=_COLOURS, aspect="auto", origin="lower", extent=(0.5, heads + 0.5, 0.5, layers + 0.5)
    )
    low, high = squares.get_clim()
    for layer, row in enumerate(values if heads <= _MOST else [], start=1):
        for head, value in enumerate(row, start=1):
            ink = "black" if value > (low + high) / 2 else "white"
            axes.text(head, layer, f"{value:.2f}", ha="center", va="center", fontsize=6.5, color=ink)
    axes.grid(visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("Head")
    axes.set_ylabel("Layer")
    bar = axes.figure.colorbar(squares, ax=axes)
    bar.set_label(f"Cumulative value at singular value {index}")


def table(found: Spectrum, index: int, share: float) -> Table:
    """By layer: the mean of its heads at an index, the range of their ranks, and the suggested k.

    Raises:
        ValueError: `index` is not in 1..N, or `share` not in (0, 1].
    """
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in ("Layer", f"First {index} of {found.length}", f"Heads reach {share:g} at", f"k for {share:g}"):
        made.add_column(name, justify="right")
    columns = (found.at(index).mean(1).tolist(), found.ranks(share), found.suggested_k(share))
    for layer, (held, ranks, k) in enumerate(zip(*columns, strict=True), start=1):
        made.add_row(str(layer), f"{held:.3f}", f"{int(ranks.min())} to {int(ranks.max())}", str(k))
    return made


def write(found: Spectrum, records: Sequence[Record], index: int, share: float, folder: Path) -> Path:
    """Write `index.html`, with the figure inside, and `spectrum.png` beside it. Returns the page's path.

    Args:
        found: what was measured.
        records: of it, of one model.
        index: where the heat map reads the curves.
        share: what the suggested k is to keep.
        folder: made if need be.

    Raises:
        ValueError: `index` is not in 1..N, or `share` not in (0, 1].
        OSError: the folder cannot be written.
    """
    title = f"{records[0].variant}: spectrum of attention"
    means = found.at(index).mean(1).tolist()
    lead = (
        f"The first {index} of {found.length} singular values of the attention weights hold {100 * min(means):.0f} to "
        f"{100 * max(means):.0f} % of their sum, by layer. To keep {share:.4g} of it takes k = "
        f"{', '.join(map(str, found.suggested_k(share)))}, from the first layer to the last."
    )
    if found.causal:
        lead += " The weights are causal, for which Linformer has no form: the k only describes them."
    caption = (
        f"Cumulative singular values of the attention weights, divided by their sum, mean of {found.blocks} blocks of "
        f"{found.length} tokens. Left: by layer, thin by head; the faster a curve rises, the lower the rank. Right: at "
        f"singular value {index}."
    )
    held = ", ".join(f"layer {layer} {value:.3f}" for layer, value in enumerate(means, start=1))
    alt = f"Curves and heat map. Share of the first {index} singular values, mean of the heads: {held}."
    return page.write(
        records, folder, title, drawn=[Picture("spectrum", figure(found, index, title), caption, alt)], lead=lead
    )
