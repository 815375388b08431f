"""Training speed and peak memory at 1K and 4K tokens, beside table II of the survey of Fournier 2021.

A Practical Survey on Faster and Lighter Transformers, arXiv:2103.14636. The table is of the Long Range Arena.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from greenformers.measure.grid import BASELINE
from greenformers.measure.record import Record
from greenformers.report import published
from greenformers.report.digits import times
from greenformers.report.plot import Picture, grid, house, new_figure, scale_times, settle

LENGTHS = {1024: "1k", 4096: "4k"}
OURS, THEIRS = "#0072B2", "#E69F00"
# Names of the variants in the survey.
SURVEY = {"transformer": "Transformer", "linformer": "Linformer", "performer": "Performer", "reformer": "Reformer",
          "linear_transformer": "Linear Transformer", "bigbird": "BigBird", "longformer": "Longformer",
          "sinkhorn": "Sinkhorn Transformer"}  # fmt: skip


class Bar(NamedTuple):
    """The bar of one variant.

    Attributes:
        ours: Measured ratio to the dense network, above 1 where the variant is better.
        rank: Rank of the measured variant, None where it has none.
        survey: The survey's ratio, None where it has none.
    """

    ours: float
    rank: int | None
    survey: float | None


Bars = dict[tuple[str, int], dict[str, Bar]]
"""Bars by metric and length, and by variant."""


def rates(
    cells: Mapping[tuple[str, str], Mapping[tuple[int, int | None], Record]], references: Path | None
) -> Picture | None:
    """A picture of bars as ratios to the dense network, so that machines can be compared; None without records.

    Args:
        cells: Records by length and rank, by variant and metric. Each variant is drawn at its best rank.
        references: Folder with the published figures; None for none.
    """
    theirs = {row["model"]: row for row in published.rows(references, published.SURVEY)}
    bars: Bars = {}
    for metric, column in (("train_step", "steps_per_s"), ("peak_memory_training", "peak_gb")):
        for length, short in LENGTHS.items():
            for (variant, name), by_field in cells.items():
                own = {rank: record.ratio for (n, rank), record in by_field.items() if n == length and record.ratio}
                if name == metric and own and variant != BASELINE:
                    rank, ratio = max(own.items(), key=lambda item: item[1])
                    survey = _survey(theirs, SURVEY.get(variant, ""), f"{column}_{short}")
                    if survey and metric == "peak_memory_training":
                        survey = 1 / survey
                    bars.setdefault((metric, length), {})[variant] = Bar(ratio, rank, survey)
    return _picture(bars) if bars else None


def _survey(rows: Mapping[str, Mapping[str, str]], model: str, column: str) -> float | None:
    dense, own = (rows.get(name, {}).get(column) for name in ("Transformer", model))
    return float(own) / float(dense) if dense and own else None


@house
def _drawn(bars: Bars, title: str) -> Figure:
    names = list(dict.fromkeys(name for values in bars.values() for name in values))  # one may lack a length
    figure = new_figure(3.1 * len(bars) + 1.2, 1.7 + 0.42 * len(names), title)
    panels = grid(figure, 1, len(bars), sharey=True)
    every = [value for drawn in bars.values() for bar in drawn.values() for value in (bar.ours, bar.survey) if value]
    for axes, ((metric, length), values) in zip(panels, bars.items(), strict=True):
        scale_times(axes, every)
        for place, bar in ((place, values[name]) for place, name in enumerate(names) if name in values):
            _bar(axes, place - 0.2 * bool(bar.survey), bar.ours, bar.rank, OURS, "here")
            if bar.survey:
                _bar(axes, place + 0.2, bar.survey, None, THEIRS, "survey")
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)  # from top to bottom
        axes.grid(visible=False, axis="y")
        quantity = "Steps a second" if metric == "train_step" else "Peak memory"
        axes.set_title(f"{quantity}, N {length}", loc="left", fontsize=9.5, fontweight="bold")
    named = {name: bar for axes in panels for bar, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(list(named.values()), list(named), loc="outside right center")
    settle(figure)
    return figure


def _bar(axes: Axes, place: float, value: float, rank: int | None, colour: str, label: str) -> None:
    """Draw a bar from the dense network's, with its ratio and its rank."""
    axes.barh(place, value - 1, 0.36, left=1, color=colour, label=label)
    words = times(value) if rank is None else f"{times(value)}, rank {rank}"
    axes.annotate(words, (max(value, 1), place), (4, 0), textcoords="offset points", va="center", fontsize=8)


def _picture(bars: Bars) -> Picture:
    words = "Training: times better than the dense network (survey, table II)"
    caption = f"{words}: faster, or with less memory. Of each variant its best rank, which is named."
    return Picture("rates", _drawn(bars, words), caption, words)
