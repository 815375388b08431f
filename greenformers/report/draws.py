"""Scores against a quantity: means over random splits of the people, with their standard deviations."""

from collections.abc import Mapping, Sequence
from textwrap import fill

from matplotlib.figure import Figure

from greenformers.measure.record import METRICS, Record
from greenformers.report.plot import grid, house, looks, new_figure, settle


@house
def draws(title: str, across: str, records: Sequence[Record], key: str, *, metrics: Sequence[str]) -> Figure:
    """A figure with one panel for each metric and one line for each model; a model with one point has a level line.

    Args:
        title: Title of the figure.
        across: Label of the horizontal axis: the quantity.
        records: Records of the means, whose spreads are standard deviations.
        key: Name of the quantity in the records' settings; where its values are names, there are points and no lines.
        metrics: Metric of each panel.
    """
    figure = new_figure(4.6 * len(metrics) + 2.6, 3.9, title)
    names = list(dict.fromkeys(record.variant for record in records))
    panels = grid(figure, 1, len(metrics), sharey=False)
    # Points stand at equal distances: at those of the quantity, small values could not be told apart.
    values = list(dict.fromkeys(record.setting[key] for record in records))
    measured = all(isinstance(value, int) for value in values)
    values = sorted(values) if measured else values
    for axes, metric in zip(panels, metrics, strict=True):
        of_names = {
            name: {r.setting[key]: r for r in records if (r.variant, r.metric) == (name, metric)} for name in names
        }
        pointed = [name for name, own in of_names.items() if not (len(own) == 1 < len(values) and measured)]
        for name, look in looks(names).items():
            own = of_names[name]
            means = [record.value for record in own.values()]
            if name not in pointed:
                axes.axhline(means[0], color=look.colour, linestyle="--", label=name)
                continue
            # Models stand a little beside each other: equal scores would hide each other.
            places = [values.index(value) + 0.08 * (pointed.index(name) - (len(pointed) - 1) / 2) for value in own]
            spreads = [record.spread or 0.0 for record in own.values()]
            bars = spreads if any(spreads) else None
            axes.errorbar(
                places, means, bars, label=name, color=look.colour, marker=look.marker,
                linestyle=look.line if measured else "none", markersize=5, capsize=3, linewidth=1.2,
            )  # fmt: skip
        axes.set_xticks(range(len(values)), [f"{value:,}" if measured else fill(value, 18) for value in values])
        axes.set_xlabel(across)
        axes.set_ylabel(f"{METRICS[metric].label} ({METRICS[metric].unit})")
    if len(names) > 1:
        panels[-1].legend(loc="center left", bbox_to_anchor=(1, 0.5))
    settle(figure)
    return figure


def listed(records: Sequence[Record], key: str, metric: str) -> Mapping[str, Mapping[int, str]]:
    """Means and standard deviations as text, by model and value of the quantity.

    Args:
        records: Records of the means, whose spreads are standard deviations.
        key: Name of the quantity in the records' settings.
        metric: Metric that is listed.
    """
    texts: dict[str, dict[int, str]] = {}
    for record in records:
        if record.metric == metric:
            deviation = "" if record.spread is None else f" ({record.spread:.1f})"
            texts.setdefault(record.variant, {})[record.setting[key]] = f"{record.value:.1f}{deviation}"
    return texts
