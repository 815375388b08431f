"""Loss against steps: a panel a task, a line a variant, its range over seeds shaded."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from greenformers.measure.record import Record
from greenformers.report.plot import Look, grid, house, looks, new_figure, settle

Losses = dict[int, list[float]]
"""Step to the losses of all seeds, in order of the steps."""


def losses(records: Iterable[Record], task: str) -> dict[str, Losses]:
    """Of each variant, its losses in one task by step; of runs repeated with a seed, the last."""
    found: dict[str, dict[int, dict[int, float]]] = {}
    for record in records:
        if record.metric == "loss" and record.setting["task"] == task:
            steps = found.setdefault(record.variant, {})
            steps.setdefault(record.setting["step"], {})[record.setting["seed"]] = record.value
    return {
        variant: {step: list(seeds.values()) for step, seeds in sorted(steps.items())}
        for variant, steps in found.items()
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
    """Means over the seeds of a step as lines, lowest to highest shaded; a variant looks alike in every panel.

    Args:
        title: of the whole.
        records: with metric "loss", and "task", "step" and "seed" in their settings; others are left out.
        tasks: a panel each, from left to right, or a row of panels each: task to the words above it.
        families: panels of a task, each with a legend of its own: words above it to its variants; beside them every
            panel has the variants that are in no family. None: one panel.
        unit: of the losses.
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
    """One panel."""
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
    """A row of panels a task; a family without a record of a task has no panel there."""
    known = {variant for family in families.values() for variant in family}
    panels: dict[str, dict[str, dict[str, Losses]]] = {}
    for task in tasks:
        every = losses(records, task)
        beside = {variant: values for variant, values in every.items() if variant not in known}
        own = {name: {each: every[each] for each in family if each in every} for name, family in families.items()}
        panels[task] = {name: beside | lines for name, lines in own.items() if lines}
    columns = max(1, *map(len, panels.values()))
    figure = new_figure(3.4 * columns, 4.1 * len(tasks), title)
    places = grid(figure, len(tasks), columns, sharey=False)
    for row, (task, drawn) in enumerate(panels.items()):
        own_places = places[row * columns : (row + 1) * columns]
        for axes, (name, lines) in zip(own_places, drawn.items(), strict=False):
            _draw(axes, lines, looks(lines), f"{tasks[task]}\n{name}", unit)
            # Below its panel: lines that fall leave no corner free.
            axes.legend(fontsize=7, handlelength=3, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
        for axes in own_places[len(drawn) :]:
            axes.set_visible(False)
    settle(figure)
    return figure
