"""What a search found: its front as a table and as a picture, and the page with the recipe of each trial."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.table import Column, Table

from greenformers.changes._options import as_flags
from greenformers.compress.job import Job
from greenformers.compress.reading import fitted
from greenformers.measure.record import METRICS
from greenformers.report.names import Spot, name_points
from greenformers.report.page import Listing
from greenformers.report.page import write as write_page
from greenformers.report.plot import GREY, Picture, house, looks, new_figure, settle
from greenformers.search.bound import Bound
from greenformers.search.recipes import name_of
from greenformers.search.run import Outcome
from greenformers.search.search import Search
from greenformers.search.trials import Trial, front


def recipe_words(search: Search, trial: Trial) -> str:
    """The recipe of a trial in words."""
    return name_of(search.recipe(trial.genes, trial.steps))


def command(search: Search, trial: Trial, model: str, job: Job) -> str:
    """The command that makes the recipe of a trial."""
    recipe = search.recipe(trial.genes, trial.steps)
    words, job = ["greenformers", "compress", model, *as_flags(recipe)], fitted(job, recipe)
    for entry in fields(Job):
        value, flag = getattr(job, entry.name), entry.metadata["flag"] or f"--{entry.name.replace('_', '-')}"
        if value == getattr(Job(), entry.name):
            continue
        given = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        words += [flag] if value is True else [flag, given]
    return shlex.join([*words, "--out", "small"])


def front_table(outcome: Outcome, runtime: str) -> Table:
    """The front: recipes that no other beats in speed and in quality, the slowest first."""
    table = Table("", "times as fast", "quality kept", "times smaller", Column("recipe", overflow="fold"))
    table.title = f"The front of {len(outcome.search.trials.seen)} trials, in {runtime}"
    table.caption = f"Timed beside the model as it is; judged {_judged(outcome)}."
    for trial in front(outcome.search.trials.done()):
        table.add_row(
            "*" if trial == outcome.best else "", f"{trial.speed:.2f}", f"{1 - trial.lost:.2%}", f"{trial.smaller:.1f}",
            recipe_words(outcome.search, trial),
        )  # fmt: skip
    return table


def sentence(outcome: Outcome, bound: Bound, runtime: str) -> str:
    """The outcome in words, and whether it keeps to the bound."""
    best = outcome.best
    said = (
        f"{recipe_words(outcome.search, best)}: {best.speed:.2f}x as fast in {runtime}, {best.smaller:.1f}x smaller, "
        f"keeps {1 - best.lost:.2%}, judged {_judged(outcome)}."
    )
    said += _unseen(outcome)
    if not bound.met_by(best):
        asked = f"{bound.lose:.2%} of loss" if bound.lose is not None else f"{bound.faster:.2f}x"
        said = f"Nothing that was tried keeps to {asked}; this is the nearest. {said}"
    return said


def _judged(outcome: Outcome) -> str:
    """How trials are judged, in words."""
    if outcome.search.lab.ranks:
        return "by how its order of the pairs that the search sees agrees with that of the model as it is"
    return "on the half of the examples that the search sees"


def _unseen(outcome: Outcome) -> str:
    """What the result keeps of the quality on examples that the search has not seen."""
    metric = outcome.search.lab.own_quality[0]
    first, *_, last = [r for r in outcome.records if (r.metric, r.benchmark) == (metric, "compress")]
    low, high = last.interval or (math.nan, math.nan)
    spread = "" if last.interval is None else f", a difference of {low:+.3g} to {high:+.3g} (95 % interval)"
    label = METRICS[metric].label
    return f" On those that it has not seen: {label} {first.value:.4g} before, {last.value:.4g} now{spread}."


def write(outcome: Outcome, bound: Bound, runtime: str, model: str, job: Job, folder: Path, title: str) -> Path:
    """Write the page: the outcome, the picture of the front, and every trial with the command that makes it.

    Args:
        outcome: The end of the search.
        bound: What was asked for.
        runtime: Runtime that trials were timed and judged in.
        model: Folder or name of the model, for the commands.
        job: Options beside the recipe, for the commands.
        folder: Folder of the page.
        title: Title of the page.

    Raises:
        OSError: The folder cannot be written.
    """
    search = outcome.search
    trials = sorted(search.trials.done(), key=lambda trial: -trial.speed)
    rows = [
        (
            recipe_words(search, trial), f"{trial.speed:.2f}", f"{1 - trial.lost:.2%}", f"{trial.smaller:.1f}",
            f"{trial.seconds:.0f}", command(search, trial, model, job),
        )
        for trial in trials
    ]  # fmt: skip
    refused = [(recipe_words(search, t), str(t.refused)) for t in search.trials.seen if t.refused is not None]
    listed = [
        Listing(
            "Trials", f"Speed, quality and size to those of the model as it is, in {runtime}; the fastest first.",
            ("recipe", "times as fast", "kept", "times smaller", "seconds", "command"), rows,
        ),
    ]  # fmt: skip
    if refused:
        listed.append(Listing("Not made", "Recipes that could not be made, and why.", ("recipe", "why"), refused))
    drawn = [Picture("front", figure(outcome, bound, runtime), *_words(outcome, runtime))]
    lead = sentence(outcome, bound, runtime)
    return write_page(
        outcome.records, folder, title, lead=lead, drawn=drawn, tabulated=outcome.records, listed=listed
    )  # fmt: skip


def figure(outcome: Outcome, bound: Bound, runtime: str) -> Figure:
    """Speed against quality of all trials; the front as a line, and the recipe that was made with a ring."""
    trials = outcome.search.trials.done()
    return front_figure(
        {"as they are": [t for t in trials if not t.steps], "healed": [t for t in trials if t.steps]}, outcome.best,
        bound, recipe_words(outcome.search, outcome.best),
        title=f"Speed and quality of {len(trials)} recipes (up and to the right is better)",
        along=f"times as fast as the model as it is, in {runtime}",
    )  # fmt: skip


@house
def front_figure(
    groups: Mapping[str, Sequence[Trial]], best: Trial, bound: Bound, name: str, *, title: str, along: str
) -> Figure:
    """Speed against quality of trials, those of a group alike; their front as a line, and the best with a ring.

    Args:
        groups: Trials by what is said of them.
        best: The best, which need not be one of them.
        bound: What was asked for.
        name: Name of the best.
        title: Title of the figure.
        along: What the speed is compared with.
    """
    top = front([trial for of in groups.values() for trial in of])
    drawn = new_figure(8.6, 4.8, title)
    axes = drawn.subplots()
    dress = looks(["", *groups])
    for said, of in groups.items():
        look = dress[said]
        if of:
            axes.scatter(
                [t.speed for t in of], [100 * (1 - t.lost) for t in of], label=said, color=look.colour,
                marker=look.marker, s=26, zorder=3,
            )  # fmt: skip
    axes.plot(
        [t.speed for t in top], [100 * (1 - t.lost) for t in top], color=GREY, linewidth=1, label="front", zorder=1
    )
    y = 100 * (1 - best.lost)
    axes.scatter(best.speed, y, s=150, facecolors="none", edgecolors="black", label="made", zorder=4)
    if bound.lose is not None:
        axes.axhline(100 * (1 - bound.lose), color=GREY, linewidth=0.8, linestyle=":", label="asked for")
    else:
        axes.axvline(bound.faster or 1, color=GREY, linewidth=0.8, linestyle=":", label="asked for")
    axes.set_ylim(_floor(top, best), max(y, 100 * (1 - min(t.lost for t in top))) + 1)
    axes.set_xlabel(along)
    axes.set_ylabel("quality kept (%)")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    settle(drawn)
    spot = Spot(best.speed, y, 0.0, y, y)
    name_points(axes, {name: spot}, FigureCanvasAgg(drawn).get_renderer())
    return drawn


def _floor(top: Sequence[Trial], best: Trial) -> float:
    """The lowest quality that is drawn: of recipes that lose far more than is asked for only few are of use."""
    lost = sorted(trial.lost for trial in top)
    return 100 * (1 - max(lost[len(lost) // 2], 2 * best.lost, 0.05)) - 1


def _words(outcome: Outcome, runtime: str) -> tuple[str, str]:
    top = front(outcome.search.trials.done())
    points = "; ".join(f"{trial.speed:.2f}x at {1 - trial.lost:.1%}" for trial in top)
    return (
        f"Each point is a recipe, timed in {runtime} beside the model as it is, and judged {_judged(outcome)}. Recipes "
        "that lose far more are below the picture.",
        f"Speed against quality kept. The front: {points}.",
    )
