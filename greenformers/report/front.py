"""What a search found: its front as a table and as a picture, and the page with the recipe of each trial."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.table import Column, Table

from greenformers.advise.in_runtime import TORCH
from greenformers.changes._options import as_flags
from greenformers.compress.job import Job
from greenformers.compress.reading import fitted
from greenformers.export.measure import NAMES
from greenformers.measure.record import METRICS
from greenformers.report.names import Spot, name_points
from greenformers.report.page import Listing
from greenformers.report.page import write as write_page
from greenformers.report.plot import GREY, Picture, house, looks, new_figure, settle
from greenformers.search.advice import MARGIN
from greenformers.search.bound import Bound
from greenformers.search.held_out import errors_of
from greenformers.search.lab import share_kept
from greenformers.search.recipes import export_command, name_of
from greenformers.search.run import Outcome
from greenformers.search.search import Search
from greenformers.search.trials import Trial, front

AREA, LEAST_AREA = 110.0, 10.0
"""Square points of the mark of a model that is as large as the one that it is compared with, and of any at least."""


def recipe_words(search: Search, trial: Trial) -> str:
    """The recipe of a trial in words."""
    return name_of(search.recipe(trial.genes, trial.steps))


def command(search: Search, trial: Trial, model: str, job: Job, runtime: str = TORCH) -> str:
    """The command that makes the recipe of a trial, and writes it for the runtime that it was timed in."""
    recipe = search.recipe(trial.genes, trial.steps)
    words, job = ["greenformers", "compress", model, *as_flags(recipe)], fitted(job, recipe)
    for entry in fields(Job):
        value, flag = getattr(job, entry.name), entry.metadata["flag"] or f"--{entry.name.replace('_', '-')}"
        if value == getattr(Job(), entry.name):
            continue
        given = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        words += [flag] if value is True else [flag, given]
    line = shlex.join([*words, "--out", "small"])
    if runtime == TORCH:
        return line
    length = search.lab.length or search.lab.reader.length
    return f"{line} && {export_command(runtime, str(job.evaluate or job.texts), length)}"


def front_table(outcome: Outcome, runtime: str) -> Table:
    """The front: recipes that no other beats in speed and in quality, the slowest first."""
    table = Table(
        "", "times as fast", "quality kept", "95 % interval", "times smaller", Column("recipe", overflow="fold")
    )
    table.title = f"The front of {len(outcome.search.trials.seen)} trials, in {runtime}"
    table.caption = f"Timed beside the model as it is; judged {_judged(outcome)}."
    for trial in front(outcome.search.trials.done()):
        table.add_row(
            "*" if trial == outcome.best else "", f"{trial.speed:.2f}", f"{1 - trial.lost:.2%}", _interval(trial),
            f"{trial.smaller:.1f}", recipe_words(outcome.search, trial),
        )  # fmt: skip
    return table


def _interval(trial: Trial) -> str:
    """The 95 % interval of the quality that is kept, in words; a dash where it is not known."""
    if trial.interval is None:
        return "–"
    low, high = trial.interval
    return f"{1 - high:.2%} to {1 - low:.2%}"


def sentence(outcome: Outcome, bound: Bound, runtime: str) -> str:
    """The outcome in words, and whether it keeps to the bound, also on examples that the search has not seen."""
    best, unseen = outcome.best, _unseen(outcome, runtime)
    said = (
        f"{recipe_words(outcome.search, best)}: {best.speed:.2f}x as fast in {runtime}, {best.smaller:.1f}x smaller, "
        f"keeps {1 - best.lost:.2%}, judged {_judged(outcome)}. On those that it has not seen: {unseen.words}."
    )
    if not bound.met_by(best):
        asked = f"{bound.lose:.2%} of loss" if bound.lose is not None else f"{bound.faster:.2f}x"
        return f"Nothing that was tried keeps to {asked}; this is the nearest. {said}"
    if bound.lose is not None and unseen.share < 1 - bound.lose:
        noise = ", within noise" if unseen.most >= 1 - bound.lose else ""
        said = (
            f"On examples that the search has not seen the result keeps {unseen.share:.2%}, less than the "
            f"{1 - bound.lose:.2%} asked for{noise}. {said}"
        )
    if bound.lose is not None and best.speed < MARGIN:
        said = f"Nothing within {bound.lose:.2%} of loss is faster than the model as it is. {said}"
    return said


def _judged(outcome: Outcome) -> str:
    """How trials are judged, in words."""
    if outcome.search.lab.ranks:
        return "by how its order of the pairs that the search sees agrees with that of the model as it is"
    return "on the half of the examples that the search sees"


class _Unseen(NamedTuple):
    """The quality on examples that the search has not seen.

    Attributes:
        share: The share of it that the result keeps; nan where the model as it is has none.
        most: The greatest share in the 95 % interval; that share itself where there is no interval.
        words: The quality before and now, in words.
    """

    share: float
    most: float
    words: str


def _unseen(outcome: Outcome, runtime: str) -> _Unseen:
    """What the result keeps of the quality on examples that the search has not seen, in the runtime of the search.

    The model as it is was judged in torch. Of the file for another runtime some of the examples may calibrate, so that
    it is judged beside the result in torch by the rest; the share is what is kept in torch, times what the file keeps.
    """
    metric = outcome.search.lab.own_quality[0]
    before, *_, now = [r for r in outcome.records if (r.metric, r.benchmark) == (metric, "compress")]
    share = most = share_kept(metric, before.value, now.value)
    words = f"{METRICS[metric].label} {before.value:.4g} before, {now.value:.4g} now"
    if runtime != TORCH:
        words += " in torch"
    if now.interval is not None:
        low, high = now.interval
        most = max(share_kept(metric, before.value, before.value + end) for end in (low, high))
        words += f", a difference of {low:+.3g} to {high:+.3g} (95 % interval)"
    files = {r.variant: r.value for r in outcome.records if (r.metric, r.benchmark) == (metric, "export")}
    # A cosine of a file is that to the result in torch, not to the model as it is.
    if runtime != TORCH and metric != "cosine" and NAMES[runtime] in files:
        result, file = files[NAMES[TORCH]], files[NAMES[runtime]]
        share, most = (part * share_kept(metric, result, file) for part in (share, most))
        words += f"; {file:.4g} in {NAMES[runtime]}, {result:.4g} in torch by the same examples"
    return _Unseen(share, most, words if math.isnan(share) else f"{words}: {share:.2%} is kept")


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
            recipe_words(search, trial), f"{trial.speed:.2f}", f"{1 - trial.lost:.2%}", _interval(trial),
            f"{trial.smaller:.1f}", f"{trial.seconds:.0f}", command(search, trial, model, job, runtime),
        )
        for trial in trials
    ]  # fmt: skip
    refused = [(recipe_words(search, t), str(t.refused)) for t in search.trials.seen if t.refused is not None]
    about = (
        f"Speed, quality and size to those of the model as it is, in {runtime}; the fastest first. {foreseen(search)}"
    )
    columns = ("recipe", "times as fast", "kept", "95 % interval", "times smaller", "seconds", "command")
    listed = [Listing("Trials", about.strip(), columns, rows)]
    if refused:
        listed.append(Listing("Not made", "Recipes that could not be made, and why.", ("recipe", "why"), refused))
    drawn = [Picture("front", figure(outcome, bound, runtime), *_words(outcome, runtime))]
    lead = sentence(outcome, bound, runtime)
    return write_page(
        outcome.records, folder, title, lead=lead, drawn=drawn, tabulated=outcome.records, listed=listed
    )  # fmt: skip


def foreseen(search: Search) -> str:
    """How well a search foresees recipes, in words; nothing where too few were tried."""
    errors = errors_of(search.space, search.trials)
    if errors is None:
        return ""
    return (
        f"Of {errors.recipes} recipes without healing, each predicted from trials of others, times are off by "
        f"{errors.time:.1%} in the median, and losses of quality by {100 * errors.lost:.2g} points."
    )


def figure(outcome: Outcome, bound: Bound, runtime: str) -> Figure:
    """Speed against quality of all trials; the front as a line, and the recipe that was made with a ring."""
    trials = outcome.search.trials.done()
    return front_figure(
        {"as they are": [t for t in trials if not t.steps], "healed": [t for t in trials if t.steps]}, trials,
        outcome.best, bound, recipe_words(outcome.search, outcome.best),
        title=f"Speed and quality of {len(trials)} recipes (up and to the right is better)",
        along=f"times as fast as the model as it is, in {runtime}", sized="size on disk",
    )  # fmt: skip


@house
def front_figure(
    groups: Mapping[str, Sequence[Trial]], compared: Sequence[Trial], best: Trial, bound: Bound, name: str, *,
    title: str, along: str, sized: str,
) -> Figure:  # fmt: skip
    """Speed against quality of trials, those of a group alike; a front as a line, and the best with a ring.

    The area of a mark is the size of its model, down to `LEAST_AREA`.

    Args:
        groups: Trials by what is said of them.
        compared: Trials of which the front is drawn: those that were judged alike.
        best: The best, which need not be one of them.
        bound: What was asked for.
        name: Name of the best.
        title: Title of the figure.
        along: What the speed is compared with.
        sized: What the size of a model is.
    """
    top = front(compared)
    drawn = new_figure(8.6, 4.8, title)
    axes = drawn.subplots()
    dress = looks(["", *groups])
    for said, of in groups.items():
        look = dress[said]
        if of:
            axes.scatter(
                [t.speed for t in of], [100 * (1 - t.lost) for t in of], label=said, color=look.colour,
                edgecolors="white", linewidths=0.4, marker=look.marker,
                s=[max(LEAST_AREA, AREA / t.smaller) for t in of], zorder=3,
            )  # fmt: skip
    axes.plot(
        [t.speed for t in top], [100 * (1 - t.lost) for t in top], color=GREY, linewidth=1, label="front", zorder=1
    )
    intervals = [(t, t.interval) for t in top if t.interval is not None]
    if intervals:
        axes.vlines(
            [t.speed for t, _ in intervals], [100 * (1 - high) for _, (_, high) in intervals],
            [100 * (1 - low) for _, (low, _) in intervals], color=GREY, linewidth=1, label="95 % interval", zorder=2,
        )  # fmt: skip
    y = 100 * (1 - best.lost)
    axes.scatter(best.speed, y, s=150, facecolors="none", edgecolors="black", label="made", zorder=4)
    if bound.lose is not None:
        axes.axhline(100 * (1 - bound.lose), color=GREY, linewidth=0.8, linestyle=":", label="asked for")
    else:
        axes.axvline(bound.faster or 1, color=GREY, linewidth=0.8, linestyle=":", label="asked for")
    for area, said in ((AREA, f"{sized}: as before"), (AREA / 4, f"{sized}: a quarter")):
        axes.scatter([], [], s=area, color=GREY, label=said)  # for the legend alone
    highest = [y, 100 * (1 - min(t.lost for t in top)), *(100 * (1 - low) for _, (low, _) in intervals)]
    highest += [] if bound.lose is None else [100 * (1 - bound.lose)]
    axes.set_ylim(_floor(top, best), max(highest) + 1)
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
    points = "; ".join(f"{t.speed:.2f}x at {1 - t.lost:.1%}, {t.smaller:.1f}x smaller" for t in top)
    return (
        f"Each point is a recipe, timed in {runtime} beside the model as it is, and judged {_judged(outcome)}. The "
        "smaller a mark, the smaller is the model on disk. Upright lines are the 95 % intervals of the front by these "
        "examples. Recipes that lose far more are below the picture.",
        f"Speed against quality kept. The front: {points}.",
    )
