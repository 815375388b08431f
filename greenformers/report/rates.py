"""The survey's table II (Long Range Arena): steps a second and peak memory of training at 1K and 4K."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from greenformers.measure.grid import BASELINE
from greenformers.measure.record import Record
from greenformers.report import published
from greenformers.report.plot import Picture, grid, house, new_figure, settle

LENGTHS = {1024: "1k", 4096: "4k"}
OURS, THEIRS = "#0072B2", "#E69F00"
# The survey's name of a variant.
SURVEY = {"transformer": "Transformer", "linformer": "Linformer", "performer": "Performer", "reformer": "Reformer",
          "linear_transformer": "Linear Transformer", "bigbird": "BigBird", "longformer": "Longformer",
          "sinkhorn": "Sinkhorn Transformer"}  # fmt: skip


def rates(
    cells: Mapping[tuple[str, str], Mapping[tuple[int, int | None], Record]], references: Path | None
) -> Picture | None:
    """Bars: as times the dense network's, so that machines can be compared; of a variant, its best rank."""
    theirs = {row["model"]: row for row in published.rows(references, "survey_table2_long_range_arena.csv")}
    bars: dict[tuple[str, int], dict[str, tuple[float, float | None]]] = {}
    for metric, column in (("train_step", "steps_per_s"), ("peak_memory_training", "peak_gb")):
        for length, short in LENGTHS.items():
            for (variant, name), found in cells.items():
                ratios = [record.ratio for (n, _), record in found.items() if n == length and record.ratio]
                if name == metric and ratios and variant != BASELINE:
                    value = max(ratios) if metric == "train_step" else 1 / max(ratios)
                    survey = _survey(theirs, SURVEY.get(variant, ""), f"{column}_{short}")
                    bars.setdefault((metric, length), {})[variant] = (value, survey)
    return _picture(bars) if bars else None


def _survey(rows: Mapping[str, Mapping[str, str]], model: str, column: str) -> float | None:
    dense, own = (rows.get(name, {}).get(column) for name in ("Transformer", model))
    return float(own) / float(dense) if dense and own else None


@house
def _drawn(bars: Mapping[tuple[str, int], Mapping[str, tuple[float, float | None]]], title: str) -> Figure:
    figure = new_figure(3.1 * len(bars) + 1.2, 1.6 + 0.35 * max(map(len, bars.values())), title)
    for axes, ((metric, length), values) in zip(grid(figure, 1, len(bars), sharey=True), bars.items(), strict=True):
        places = range(len(values))
        axes.barh([y - 0.18 for y in places], [ours for ours, _ in values.values()], 0.34, color=OURS, label="here")
        known = [(y + 0.18, survey) for y, (_, survey) in zip(places, values.values(), strict=True) if survey]
        if known:
            axes.barh([y for y, _ in known], [survey for _, survey in known], 0.34, color=THEIRS, label="survey")
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_yticks(places, list(values))
        axes.set_ylim(len(values) - 0.5, -0.5)  # from top to bottom
        axes.set_xlabel(f"{'Steps a second' if metric == 'train_step' else 'Peak memory'}, N {length}")
    axes.legend()
    settle(figure)
    return figure


def _picture(bars: Mapping[tuple[str, int], Mapping[str, tuple[float, float | None]]]) -> Picture:
    words = "Training, as times the dense network's (survey, table II)"
    return Picture("rates", _drawn(bars, words), f"{words}. Of each variant the best rank.", words)
