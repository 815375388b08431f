"""Loss against steps: one panel for each task, one line for each variant, with its range over seeds shaded."""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from statistics import mean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from greenformers.measure.record import Record
from greenformers.report.names import name_lines
from greenformers.report.plot import Look, grid, house, looks, new_figure, settle

ACROSS = 3
"""Greatest number of panels of families in a row."""

Losses = dict[int, list[float]]
"""Losses of all seeds by step, in order of the steps."""


def losses(records: Iterable[Record], task: str) -> dict[str, Losses]:
    """Losses in one task, by variant and step; where a seed was run again, the last record counts."""
    by_variant: dict[str, dict[int, dict[int, float]]] = {}
    for record in records:
        if record.metric == "loss" and record.setting["task"] == task:
            steps = by_variant.setdefault(record.variant, {})
            steps.setdefault(record.setting["step"], {})[record.setting["seed"]] = record.value
    return {
        variant: {step: list(seeds.values()) for step, seeds in sorted(steps.items())}
        for variant, steps in by_variant.items()
    }


@house
def loss_curves(
    title: str,
    records: Sequence[Record],
    tasks: Mapping[str, str],
    families: Mapping[str, Sequence[str]] | None = None,
    *,
    unit: str = "nats a byte",
) -> Figure:
    """A figure of mean losses over the seeds, with the range from lowest to highest shaded.

    A variant looks alike in every panel, unless there are families.

    Args:
        title: Title of the figure.
        records: Records with "task", "step" and "seed" in their settings; metrics other than "loss" are left out.
        tasks: Titles of the tasks, each of which has a panel, from left to right, or with families a row of panels.
        families: Variants of each panel of a task, by its title; variants in no family are in every panel. The panels
            of a task share their scale, and lines are named at their ends. None for one panel for each task.
        unit: Unit of the losses.
    """
    if families:
        return _by_family(title, records, tasks, families, unit)
    panels = {task: losses(records, task) for task in tasks}
    dress = looks(dict.fromkeys(record.variant for record in records if record.metric == "loss"))
    figure = new_figure(4.6 * len(tasks) + 2.6, 4.8, title)
    for axes, (task, lines) in zip(grid(figure, 1, len(tasks), sharey=False), panels.items(), strict=True):
        _draw(axes, lines, dress, tasks[task], unit)
    named = {name: line for axes in figure.axes for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    if named:
        shown = [name for name in dress if name in named]
        figure.legend([named[name] for name in shown], shown, loc="outside right center", handlelength=4)
    settle(figure)
    return figure


def _draw(axes: Axes, lines: Mapping[str, Losses], dress: Mapping[str, Look], title: str, unit: str) -> None:
    """Draw one panel."""
    for variant, values in lines.items():
        look, means = dress[variant], [mean(seeds) for seeds in values.values()]
        low, high = (list(map(end, values.values())) for end in (min, max))
        axes.plot(list(values), means, label=variant, color=look.colour, linestyle=look.line, marker=look.marker,
                  markersize=4, linewidth=1.2)  # fmt: skip
        axes.fill_between(list(values), low, high, color=look.colour, alpha=0.12, linewidth=0)
    axes.set_title(title, loc="left", fontsize=9.5, fontweight="bold")
    axes.set_xlabel("Step")
    axes.set_ylabel(f"Loss ({unit})")


def _by_family(
    title: str, records: Sequence[Record], tasks: Mapping[str, str], families: Mapping[str, Sequence[str]], unit: str
) -> Figure:
    """A figure with rows of panels for each task, on one scale; a family without records of a task has no panel."""
    panels = {task: _families(losses(records, task), families) for task in tasks}
    columns = max(1, *(ceil(len(own) / ceil(len(own) / ACROSS)) for own in panels.values() if own), 0)
    rows = [
        (task, list(own.items())[first : first + columns])
        for task, own in panels.items()
        for first in range(0, max(1, len(own)), columns)
    ]
    figure = new_figure(5.4 * columns, 3.4 * len(rows) + 0.3, title)
    places = grid(figure, len(rows), columns, sharey=False)
    for number, (task, drawn) in enumerate(rows):
        own_places = places[number * columns : (number + 1) * columns]
        for axes, (name, lines) in zip(own_places, drawn, strict=False):
            _draw(axes, lines, looks(lines), f"{tasks[task]}\n{name}", unit)
            axes.set_ylim(*_span(panels[task]))
            name_lines(axes)
        for axes in own_places[len(drawn) :]:
            axes.set_visible(False)
    settle(figure)
    return figure


def _families(every: Mapping[str, Losses], families: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Losses]]:
    """The lines of each panel of a task: those of a family, beside the variants that are in no family."""
    members = {variant for family in families.values() for variant in family}
    beside = {variant: values for variant, values in every.items() if variant not in members}
    own = {name: {each: every[each] for each in family if each in every} for name, family in families.items()}
    return {name: beside | lines for name, lines in own.items() if lines}


def _span(panels: Mapping[str, Mapping[str, Losses]]) -> tuple[float, float]:
    """The least and the greatest loss of all panels, with a margin."""
    values = [loss for lines in panels.values() for own in lines.values() for seeds in own.values() for loss in seeds]
    margin = 0.05 * (max(values) - min(values)) or 0.1
    return min(values) - margin, max(values) + margin
