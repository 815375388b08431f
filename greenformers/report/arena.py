"""A grid of tasks as tables and as a page: accuracies with their controls, speed beside the published, and curves."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from rich.table import Column, Table

from greenformers.arena.grid import Plan
from greenformers.arena.protocol import task_of
from greenformers.arena.variants import BASELINE
from greenformers.measure.intervals import mean_interval, wilson
from greenformers.measure.record import Record
from greenformers.report import published
from greenformers.report.curves import Panel, Points, line_panels
from greenformers.report.digits import times
from greenformers.report.page import Listing
from greenformers.report.page import write as write_page
from greenformers.report.plot import Picture

PUBLISHED = {
    "transformer": "Transformer", "bigbird": "BigBird", "sinkhorn": "Sinkhorn Transformer", "reformer": "Reformer",
    "linformer": "Linformer", "synthesizer_dense": "Synthesizer", "linear_transformer": "Linear Transformer",
    "performer": "Performer",
}  # fmt: skip
"""Models of the survey's table II which have a speed, by variant, see `published.SURVEY`."""

COLUMNS = {1024: "steps_per_s_1k", 4096: "steps_per_s_4k"}
"""Columns of its speeds, by length."""

LINES = 6
"""Most variants in a picture."""

NONE = "–"


def scores_listing(plan: Plan, records: Sequence[Record], task: str) -> Listing:
    """The accuracies of a task, best first: from scratch, beside a window of the same compute, and self-pretrained.

    Args:
        plan: Plan of the grid.
        records: Records of the grid.
        task: Name of the task.
    """
    own = [record for record in records if record.setting.get("task") == task]
    scratch, restored = (_accuracies(own, pretrained=pretrained) for pretrained in (False, True))
    flops = {record.variant: record.value for record in own if record.metric == "flops"}
    rows = []
    for variant in sorted(scratch, key=lambda name: -mean(scratch[name])):
        beside = plan.controls.get(task, {}).get(variant)
        rows.append((
            variant,
            _with_interval(own, variant, scratch[variant], plan.grid.seeds),
            _difference(own, variant),
            _control(beside, variant, scratch, flops),
            _with_interval(own, variant, restored[variant], plan.grid.seeds) if variant in restored else NONE,
            f"{1e3 * flops[variant]:,.1f}" if variant in flops else NONE,
        ))  # fmt: skip
    for record in own:
        if record.setting.get("at") == "baseline":
            count = record.setting["test"]
            low, high = wilson(round(record.value / 100 * count), count)
            rows.append((f"without a network: {record.variant}", f"{record.value:.1f} ({low:.1f} to {high:.1f})",
                         NONE, NONE, NONE, NONE))  # fmt: skip
    rows += [(variant, "cannot be used", NONE, NONE, NONE, NONE) for variant in plan.unusable.get(task, ())]
    head = ("variant", "accuracy, %", "to dense", "window of the same FLOPs, %", "self-pretrained, %", "MFLOP")
    return Listing(task_of(task).title, _caption(plan, own), head, rows)


def speed_listing(records: Sequence[Record], task: str, references: Path | None = None) -> Listing:
    """Steps a second and peak memory of a task, the fastest first, as ratios to dense attention, beside the published.

    Args:
        records: Records of the grid.
        task: Name of the task.
        references: Folder of the published table; None for none.
    """
    own = [record for record in records if record.setting.get("task") == task]
    own = [record for record in own if record.setting.get("beside") == record.variant]
    there = published.rows(references, published.SURVEY)
    lengths = sorted({record.setting["length"] for record in own if record.setting.get("at") == "length"})
    steps = {r.variant: r for r in own if r.metric == "train_step" and r.setting.get("at") == "step"}
    peaks = {r.variant: r for r in own if r.metric == "peak_memory_training" and r.setting.get("at") == "step"}
    rows = []
    for variant, record in sorted(steps.items(), key=lambda entry: -(entry[1].ratio or 1)):
        peak = peaks[variant]
        row = [variant, f"{1000 / record.value:.2f}", times(record.ratio or 1), f"{peak.value:,.1f}",
               times(peak.ratio or 1)]  # fmt: skip
        for length in lengths:
            row += [_ratio(own, variant, length), _published(there, variant, length)]
        rows.append(row)
    head = ["variant", "steps a second", "times dense", "peak MiB", "times better than dense"]
    for length in lengths:
        head += [f"times dense at {length:,}", "published"]
    caption = (
        "Forward and backward pass on one batch, in turns with dense attention, which the ratios are to: from row to "
        "row the load of the machine may differ. Other lengths: one sequence. "
        "Published: Fournier 2021, arXiv:2103.14636, table II."
    )
    return Listing(f"{task_of(task).title}: speed and memory", caption, head, rows)


def tables(plan: Plan, records: Sequence[Record], references: Path | None = None) -> list[Table]:
    """Tables for a terminal, two for each task.

    Args:
        plan: Plan of the grid.
        records: Records of the grid.
        references: Folder of the published table; None for none.
    """
    listings = [
        listing
        for task in plan.grid.tasks
        for listing in (scores_listing(plan, records, task), speed_listing(records, task, references))
        if listing.rows
    ]
    every = []
    for listing in listings:
        first, *others = listing.head
        columns = [Column(first, overflow="fold"), *(Column(name, justify="right") for name in others)]
        table = Table(*columns, title=listing.title, caption=listing.caption)
        for row in listing.rows:
            table.add_row(*row)
        every.append(table)
    return every


def write(plan: Plan, records: Sequence[Record], folder: Path, references: Path | None = None) -> Path:
    """Write the page: the outcome in words, learning curves, and the tables of every task.

    Args:
        plan: Plan of the grid.
        records: Records of the grid.
        folder: Folder of the page.
        references: Folder of the published table; None for none.

    Raises:
        ValueError: There are no records.
        OSError: The folder cannot be written.
    """
    drawn = [picture for task in plan.grid.tasks if (picture := curves(plan, records, task)) is not None]
    listed = [
        listing
        for task in plan.grid.tasks
        for listing in (scores_listing(plan, records, task), speed_listing(records, task, references))
        if listing.rows
    ]
    if failures := [(str(part), part.failure) for part in plan.parts if part.failure is not None]:
        listed.append(Listing("Not done", "Parts that could not be done, and why.", ("part", "reason"), failures))
    title = f"Arena, size {plan.grid.size}"
    return write_page(records, folder, title, lead=sentence(plan, records), drawn=drawn, listed=listed)


def sentence(plan: Plan, records: Sequence[Record]) -> str:
    """The outcome in words: of each task the best variant, dense attention, and the best that needs no network."""
    parts = []
    for task in plan.grid.tasks:
        own = [record for record in records if record.setting.get("task") == task]
        scratch, restored = (_accuracies(own, pretrained=pretrained) for pretrained in (False, True))
        if not scratch:
            continue
        said = _best("the best from scratch", scratch)
        if BASELINE in scratch:
            said += f", dense attention {mean(scratch[BASELINE]):.1f} %"
        if restored:
            said += f"; {_best('the best self-pretrained', restored)}"
        trivial = [record for record in own if record.setting.get("at") == "baseline"]
        if trivial:
            best = max(trivial, key=lambda record: record.value)
            said += f"; without a network ({best.variant}) {best.value:.1f} %"
        parts.append(f"{task_of(task).title}: {said}.")
    return " ".join(parts) or "No cell is trained yet."


def curves(plan: Plan, records: Sequence[Record], task: str) -> Picture | None:
    """Validation accuracy by step, from scratch and self-pretrained, and the loss of restoring masked inputs.

    Args:
        plan: Plan of the grid.
        records: Records of the grid.
        task: Name of the task.

    Returns:
        The picture; None where nothing is trained.
    """
    own = [record for record in records if record.setting.get("task") == task]
    every = _accuracies(own, pretrained=False)
    if not every:
        return None
    best = sorted(every, key=lambda name: (name != BASELINE, -mean(every[name])))[:LINES]
    # Those that are in every panel come first, so that they look alike in all.
    restored = _accuracies(own, pretrained=True)
    best.sort(key=lambda name: name not in restored)
    trivial = [record for record in own if record.setting.get("at") == "baseline"]
    panels = []
    for title, metric, label, pretrained in (
        ("From scratch", "accuracy", "Validation accuracy (%)", False),
        ("Self-pretrained, then trained", "accuracy", "Validation accuracy (%)", True),
        ("Restoring masked inputs", "loss", "Validation loss (nats)", True),
    ):
        lines = {name: line for name in best if (line := _line(own, name, metric, pretrained=pretrained))}
        if not lines:
            continue
        if trivial and metric == "accuracy":
            top = max(trivial, key=lambda record: record.value)
            steps = [step for line in lines.values() for step, _ in line]
            lines[f"no network: {top.variant}"] = [(step, top.value) for step in (min(steps), max(steps))]
        panels.append(Panel("Step", label, lines, title=title))
    if not panels:
        return None
    figure = line_panels(f"{task_of(task).title}, size {plan.grid.size}: mean of seeds", panels)
    left = len(every) - len(best)
    caption = "Each line is the mean over the seeds." + (f" The other {left} variants score lower." if left > 0 else "")
    return Picture(f"curves_{task}", figure, caption, f"Learning curves on {task_of(task).title}.")


def _accuracies(own: Sequence[Record], *, pretrained: bool) -> dict[str, list[float]]:
    """Test accuracies of each variant, of all seeds."""
    values: dict[str, list[float]] = {}
    for record in own:
        single = record.metric == "test_accuracy" and "seed" in record.setting
        if single and bool(record.setting["pretraining_steps"]) == pretrained:
            values.setdefault(record.variant, []).append(record.value)
    return values


def _with_interval(own: Sequence[Record], variant: str, values: Sequence[float], seeds: int) -> str:
    """The mean over seeds with its interval; of one seed Wilson's, of the test examples. Seeds that failed are told."""
    if len(values) > 1:
        low, high = mean_interval(values)
        low, high = max(0.0, low), min(100.0, high)
    else:
        count = next(r.setting["test"] for r in own if r.variant == variant and "seed" in r.setting)
        low, high = wilson(round(values[0] / 100 * count), count)
    some = f", {len(values)} of {seeds} seeds" if len(values) < seeds else ""
    return f"{mean(values):.1f} ({low:.1f} to {high:.1f}{some})"


def _difference(own: Sequence[Record], variant: str) -> str:
    """The interval of the difference to dense attention, over the seeds or of the one there is."""
    alike = [
        record
        for record in own
        if record.variant == variant and record.metric == "test_accuracy" and record.interval
        if not record.setting["pretraining_steps"]
    ]
    if not alike:
        return NONE
    record = next((record for record in alike if "draws" in record.setting), alike[0])
    low, high = record.interval or (0.0, 0.0)
    return f"{low:+.1f} to {high:+.1f}"


def _control(beside: str | None, variant: str, scratch: dict[str, list[float]], flops: dict[str, float]) -> str:
    """The accuracy of the window beside a variant, its size, and its FLOPs as a share of those of the variant."""
    if beside is None or beside not in scratch:
        return NONE
    if beside == BASELINE:
        return f"{mean(scratch[beside]):.1f} (dense costs no more)"
    share = f", {flops[beside] / flops[variant]:.2f}x FLOPs" if {beside, variant} <= set(flops) else ""
    return f"{mean(scratch[beside]):.1f} (w {beside.rpartition('=')[2]}{share})"


def _ratio(own: Sequence[Record], variant: str, length: int) -> str:
    for record in own:
        at = record.setting.get("at"), record.setting.get("length")
        if (record.variant, record.metric, *at) == (variant, "train_step", "length", length):
            return times(record.ratio or 1)
    return NONE


def _published(there: Sequence[dict[str, str]], variant: str, length: int) -> str:
    """The published speed of a variant as a ratio to that of the Transformer."""
    column = COLUMNS.get(length, "")
    speeds = {row["model"]: float(row[column]) for row in there if row.get(column)}
    model = PUBLISHED.get(variant, "")
    return times(speeds[model] / speeds[PUBLISHED[BASELINE]]) if model in speeds else NONE


def _line(own: Sequence[Record], variant: str, metric: str, *, pretrained: bool) -> Points:
    """The mean over seeds of a validation score, by step."""
    values: dict[int, list[float]] = {}
    for record in own:
        if record.variant != variant or record.metric != metric or record.setting.get("split") != "valid":
            continue
        if bool(record.setting["pretraining_steps"]) == pretrained:
            values.setdefault(record.setting["step"], []).append(record.value)
    return [(step, mean(seeds)) for step, seeds in sorted(values.items())]


def _best(label: str, scores: dict[str, list[float]]) -> str:
    name = max(scores, key=lambda variant: mean(scores[variant]))
    return f"{label} is {name} with {mean(scores[name]):.1f} %"


def _caption(plan: Plan, own: Sequence[Record]) -> str:
    """The protocol of a table in words, with the steps of each kind of training."""
    size = task_of(own[0].setting["task"]).sizes[plan.grid.size] if own else None
    if size is None:
        return ""
    steps = plan.grid.steps or size.steps
    half = steps // 2
    seeds = f"mean over {plan.grid.seeds} seeds" if plan.grid.seeds > 1 else "one seed"
    return (
        f"Accuracy on the test split, {seeds}, with a 95 % interval. {size.layers} layers of width {size.hidden}, "
        f"{size.length:,} positions, batches of {plan.grid.batch or size.batch}. From scratch {steps:,} steps; "
        f"self-pretrained {half:,} steps of restoring masked inputs and {steps - half:,} of training. FLOPs: one "
        "sequence, forward."
    )
