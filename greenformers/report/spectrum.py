"""The spectrum of attention weights as table, figure and page. Linformer, Wang 2020, arXiv:2006.04768, figure 1."""

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
def figure(spectrum: Spectrum, index: int, title: str) -> Figure:
    """A figure of the cumulative singular values: on the left as curves, on the right at an index by layer and head.

    Args:
        spectrum: Spectrum that was measured.
        index: Number of largest singular values that the heat map adds up, in 1..N.
        title: Title of the figure.

    Raises:
        ValueError: `index` is not in 1..N.
    """
    values = spectrum.at(index)
    layers, heads = values.shape
    width = max(4.2, 0.36 * min(heads, _MOST) + 1.6)
    drawn = new_figure(4.6 + width, max(3.9, 0.26 * layers + 1.5), title)
    left, right = drawn.subplots(1, 2, width_ratios=[4.6, width])
    _curves(left, spectrum, index)
    _heat_map(right, values.tolist(), index)
    settle(drawn)
    return drawn


def _curves(axes: Axes, spectrum: Spectrum, index: int) -> None:
    places = range(1, spectrum.length + 1)
    count = len(spectrum.cumulative)
    for layer, heads in enumerate(spectrum.cumulative):
        colour, line = _COLOURS(0.9 * layer / max(1, count - 1)), LINES[layer % len(LINES)]
        for head in heads:
            axes.plot(places, head.tolist(), color=colour, linewidth=0.4, alpha=0.35)
        mean, name = heads.mean(0).tolist(), f"layer {layer + 1}"
        axes.plot(places, mean, color=colour, linestyle=line, linewidth=1.8, label=name, zorder=3)
    axes.axvline(index, color=GREY, linewidth=0.8)
    axes.annotate(f"{index}", (index, 0), (3, 3), textcoords="offset points", fontsize=8, color=GREY)
    axes.set_xlim(0, spectrum.length)
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


def table(spectrum: Spectrum, index: int, share: float) -> Table:
    """A table by layer: the mean of its heads at an index, the range of their ranks, and the suggested k.

    Args:
        spectrum: Spectrum that was measured.
        index: Number of largest singular values that are added up, in 1..N.
        share: Share of the sum of the singular values that the suggested k holds, in (0, 1].

    Raises:
        ValueError: `index` is not in 1..N, or `share` not in (0, 1].
    """
    by_layer = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in ("Layer", f"First {index} of {spectrum.length}", f"Heads reach {share:g} at", f"k for {share:g}"):
        by_layer.add_column(name, justify="right")
    columns = (spectrum.at(index).mean(1).tolist(), spectrum.ranks(share), spectrum.suggested_k(share))
    for layer, (held, ranks, k) in enumerate(zip(*columns, strict=True), start=1):
        by_layer.add_row(str(layer), f"{held:.3f}", f"{int(ranks.min())} to {int(ranks.max())}", str(k))
    return by_layer


def write(spectrum: Spectrum, records: Sequence[Record], index: int, share: float, folder: Path) -> Path:
    """Write `index.html`, with the figure inside, and `spectrum.png` beside it. Returns the page's path.

    Args:
        spectrum: Spectrum that was measured.
        records: Records of the spectrum, of one model.
        index: Number of largest singular values that the heat map adds up, in 1..N.
        share: Share of the sum of the singular values that the suggested k holds, in (0, 1].
        folder: Folder of the files, which is created where it is missing.

    Raises:
        ValueError: `index` is not in 1..N, or `share` not in (0, 1].
        OSError: The folder cannot be written.
    """
    title = f"{records[0].variant}: spectrum of attention"
    means = spectrum.at(index).mean(1).tolist()
    lead = (
        f"The first {index} of {spectrum.length} singular values of the attention weights hold {100 * min(means):.0f} "
        f"to {100 * max(means):.0f} % of their sum, by layer. To keep {share:.4g} of it takes k = "
        f"{', '.join(map(str, spectrum.suggested_k(share)))}, from the first layer to the last."
    )
    if spectrum.causal:
        lead += " The weights are causal, for which Linformer has no form: the k only describes them."
    caption = (
        f"Cumulative singular values of the attention weights, divided by their sum, mean of {spectrum.blocks} blocks "
        f"of {spectrum.length} tokens. Left: by layer, thin by head; the faster a curve rises, the lower the rank. "
        f"Right: at singular value {index}."
    )
    held = ", ".join(f"layer {layer} {value:.3f}" for layer, value in enumerate(means, start=1))
    alt = f"Curves and heat map. Share of the first {index} singular values, mean of the heads: {held}."
    return page.write(
        records, folder, title, drawn=[Picture("spectrum", figure(spectrum, index, title), caption, alt)], lead=lead
    )
