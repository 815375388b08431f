"""What a search for a network to be trained found: its front as a table and as a picture, and a page of all trials."""

import json
import math
import shlex
from dataclasses import fields, replace
from pathlib import Path

from rich.table import Column, Table

from greenformers.measure.record import METRICS
from greenformers.report.front import front_figure
from greenformers.report.page import Listing
from greenformers.report.page import write as write_page
from greenformers.report.plot import Picture
from greenformers.search.bound import Bound
from greenformers.search.network_lab import quality_of
from greenformers.search.network_run import BASE, BEST, Found
from greenformers.search.trials import front
from greenformers.train.settings import Training


def front_table(result: Found) -> Table:
    """The front of networks that were trained in full, the slowest first."""
    space, rungs = result.hurdles.space, result.hurdles.plan.rungs
    table = Table("times as fast", "quality kept", "times fewer parameters", Column("network", overflow="fold"))
    table.title = f"The front of networks trained for {rungs[-1]} steps, of {len(_tried(result))} tried"
    table.caption = "Judged on the validation split and timed beside the network of the settings."
    for trial in front(result.hurdles.tries.trials.done(rungs[-1])):
        table.add_row(f"{trial.speed:.2f}", f"{1 - trial.lost:.2%}", f"{trial.smaller:.1f}", space.words(trial.genes))
    return table


def sentence(result: Found, bound: Bound) -> str:
    """The outcome in words, and whether it keeps to the bound, also as measured in the end."""
    base, best = (next(r for r in result.records if r.variant == name) for name in (BASE, BEST))
    speed = next(record.value for record in result.records if record.metric == "speed")
    label = METRICS[base.metric].label
    said = (
        f"{result.hurdles.space.words(result.best.genes)}: {speed:.2f}x as fast, {result.best.smaller:.1f}x fewer "
        f"parameters, keeps {1 - result.best.lost:.2%} of the quality on the validation split. On the test split: "
        f"{label} {base.value:.4g} of the network of the settings, {best.value:.4g} of this one."
    )
    share = _share(result, base.value, best.value)
    if not bound.met_by(replace(result.best, speed=speed)):
        if bound.met_by(result.best):
            return f"Timed again it is slower than the {bound.faster:.2f}x asked for. {said}"
        asked = f"{bound.lose:.2%} of loss" if bound.lose is not None else f"{bound.faster:.2f}x"
        return f"Nothing that was tried keeps to {asked}; this is the nearest. {said}"
    if bound.lose is not None and share < 1 - bound.lose:
        return f"On the test split it keeps {share:.2%}, less than the {1 - bound.lose:.2%} asked for. {said}"
    return said


def _share(result: Found, before: float, after: float) -> float:
    """The share that is kept of the quality by these scores; nan where the network of the settings has none."""
    objective = result.hurdles.lab.objective
    own = quality_of(objective, before)
    return quality_of(objective, after) / own if own > 0 else math.nan


def write(result: Found, bound: Bound, folder: Path, title: str) -> Path:
    """Write the page: the outcome, the picture of the front, and every trial.

    Raises:
        OSError: The folder cannot be written.
    """
    space, rungs, trials = result.hurdles.space, result.hurdles.plan.rungs, result.hurdles.tries.trials
    groups = {f"{steps} steps": trials.done(steps) for steps in rungs}
    words = space.words(result.best.genes)
    drawn = front_figure(
        groups, trials.done(rungs[-1]), result.best, bound, words,
        title=f"Speed and quality of {len(_tried(result))} networks (up and to the right is better)",
        along="times as fast as the network of the settings", sized="parameters",
    )  # fmt: skip
    points = "; ".join(f"{trial.speed:.2f}x at {1 - trial.lost:.1%}" for trial in front(trials.done(rungs[-1])))
    picture = Picture(
        "front", drawn, "Each point is a network trained for so many steps, judged and timed beside the network of the "
        "settings after as many. The ring is the mean of several trainings of the best. The smaller a mark, the fewer "
        "parameters.",
        f"Speed against quality kept. The front: {points}.",
    )  # fmt: skip
    rows = [
        (
            space.words(t.genes),
            str(t.steps),
            f"{t.speed:.2f}",
            f"{1 - t.lost:.2%}",
            f"{t.smaller:.1f}",
            f"{t.seconds:.0f}",
            command(space.settings(t.genes)),
        )
        for t in sorted(trials.done(), key=lambda trial: (-trial.steps, -trial.speed))
    ]
    columns = ("network", "steps", "times as fast", "kept", "times fewer parameters", "seconds", "command")
    listed = [Listing("Trials", "To the network of the settings, after as many steps.", columns, rows)]
    refused = [(space.words(t.genes), str(t.refused)) for t in trials.seen if t.refused is not None]
    if refused:
        listed.append(Listing("Not made", "Networks that could not be trained, and why.", ("network", "why"), refused))
    return write_page(
        result.records, folder, title, lead=sentence(result, bound), drawn=[picture], tabulated=result.records,
        listed=listed,
    )  # fmt: skip


def command(settings: Training) -> str:
    """The command that trains a network."""
    words = ["greenformers", "train"]
    for entry in fields(settings):
        value, flag = getattr(settings, entry.name), f"--{entry.name.replace('_', '-')}"
        if value == entry.default and entry.name != "data":
            continue
        if isinstance(value, dict):
            words += [word for name, own in value.items() for word in (flag, f"{name}={json.dumps(own)}")]
        elif isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        elif value is not None:
            words += [flag, str(value)]
    return shlex.join([*words, "--out", "run"])


def _tried(result: Found) -> set[tuple[int, ...]]:
    return {trial.genes for trial in result.hurdles.tries.trials.seen}
