"""Loss against steps: a panel a task, a line a variant, its range over seeds shaded."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean

from matplotlib.figure import Figure

from greenformers.measure.record import Record
from greenformers.report.plot import grid, house, looks, new_figure, settle

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
    title: str, records: Sequence[Record], tasks: Mapping[str, str], *, unit: str = "nats a byte"
) -> Figure:
    """Means over the seeds of a step as lines, lowest to highest shaded; a variant looks alike in every panel.

    Args:
        title: of the whole.
        records: with metric "loss", and "task", "step" and "seed" in their settings; others are left out.
        tasks: a panel each, from left to right: task to the words above it.
        unit: of the losses.
    """
    panels = {task: losses(records, task) for task in tasks}
    dress = looks(dict.fromkeys(record.variant for record in records if record.metric == "loss"))
    figure = new_figure(4.6 * len(tasks) + 2.6, 4.8, title)
    for axes, (task, lines) in zip(grid(figure, 1, len(tasks), sharey=False), panels.items(), strict=True):
        for variant, values in lines.items():
            look, means = dress[variant], [mean(seeds) for seeds in values.values()]
            low, high = (list(map(end, values.values())) for end in (min, max))
            axes.plot(list(values), means, label=variant, color=look.colour, linestyle=look.line, marker=look.marker,
                      markersize=4, linewidth=1.2)  # fmt: skip
            axes.fill_between(list(values), low, high, color=look.colour, alpha=0.12, linewidth=0)
        axes.set_title(tasks[task], loc="left", fontsize=9.5, fontweight="bold")
        axes.set_xlabel("Step")
        axes.set_ylabel(f"Loss ({unit})")
    named = {name: line for axes in figure.axes for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    if named:
        shown = [name for name in dress if name in named]
        figure.legend([named[name] for name in shown], shown, loc="outside right center", handlelength=4)
    settle(figure)
    return figure
