"""`greenformers search`: a network to be trained, searched around the settings of a run, and trained by them."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console

from greenformers.measure.parameters import parameters
from greenformers.measure.record import Record, with_ratios
from greenformers.model.variant import control
from greenformers.search import UNSEARCHED
from greenformers.search.bound import Bound
from greenformers.search.hurdles import TOP, Hurdles, NetworkPlan, by_chance, by_evolution
from greenformers.search.network_lab import NetworkLab, with_validation
from greenformers.search.network_space import PARTS, NetworkSpace
from greenformers.search.one_shot import by_one_shot, parts_of
from greenformers.search.space import Genes
from greenformers.search.trials import Trial, Trials
from greenformers.search.tries import Tries
from greenformers.train import checkpoint, low_rank, run
from greenformers.train.objective import Objective
from greenformers.train.others import Others, each_alone
from greenformers.train.processes import first_process
from greenformers.train.replaced_token_detection import ReplacedTokenDetection
from greenformers.train.save import check_new
from greenformers.train.settings import Settings, Training

STRATEGIES = ("evolution", "random", "one-shot")

RUNGS = (9, 3, 1)
"""Parts of the steps of the settings that networks are trained for, before and behind each hurdle."""

AGAIN = 1
"""Other seeds that the best networks are trained with before one is chosen: of many the best by one training looks
better than it is."""

AFTER = (TOP + 1) * AGAIN + 2
"""Full trainings behind the search: the best and the network of the settings with other seeds, and the runs of two."""

BASE, BEST = "base", "best"
"""Folders of the runs of the network of the settings and of the best one."""

TRIALS, ABOUT = "search/trials.jsonl", "search/search.json"

RESULTS, REPORT = "results.jsonl", "report/index.html"
"""The last that a command writes: without them a search goes on, though both networks are trained."""


@dataclass(frozen=True)
class NetworkJob:
    """A search for a network.

    Attributes:
        bound: What the network must keep to.
        strategy: One of `STRATEGIES`.
        minutes: Minutes that it may take.
        vary: Parts that vary.
        attentions: Attentions and blocks that are tried; None for all.
    """

    bound: Bound
    strategy: str = STRATEGIES[0]
    minutes: float = 30.0
    vary: tuple[str, ...] = PARTS
    attentions: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}; got {self.strategy!r}")
        if not self.minutes > 0:
            raise ValueError(f"minutes must be above 0, got {self.minutes:g}")
        if self.strategy == "one-shot" and self.bound.faster is None:
            raise ValueError("the strategy one-shot looks for the best network at a speed: it needs faster")


@dataclass(frozen=True)
class Found:
    """The end of a search.

    Attributes:
        hurdles: The search, with all trials.
        best: The network, as the mean of its trainings.
        settings: Its settings.
        records: Scores of it and of the network of the settings on the test split, their speed and parameters.
    """

    hurdles: Hurdles
    best: Trial
    settings: Training
    records: list[Record]


def find_network(
    base: Settings, out: Path, job: NetworkJob, *, about: dict[str, Any], resume: bool = False, console: Console,
    told: Callable[[Hurdles, Trial], None] = lambda *_: None,
) -> Found:  # fmt: skip
    """Search for a network, and train it and that of the settings as `greenformers train` does.

    The folder then holds both runs, `BASE` and `BEST`, and in `search` what was tried. Several processes try a network
    each at a time, and train the two together.

    Args:
        base: Settings of the network that others are compared with, of data and of training.
        out: Folder of both runs.
        job: What is looked for, and how.
        about: Context of the records.
        resume: Go on with a search that was stopped.
        console: Console that shows the final trainings.
        told: Function that is called, in the first process, with the search and each trial that ended.

    Raises:
        ValueError: A setting is out of range, or the time is too short for a few networks.
        OSError: A file is missing, or the folder cannot be written.
        Stopped: A signal ended the search early; it can be resumed.
    """
    base = base.settled()  # all networks learn by one optimiser
    # What is not as fast as asked for was not trained; another loss chooses among the same networks.
    # Speeds of another machine, and networks by their numbers of another version, would be taken for those of this one.
    there = {name: about.get("machine", {}).get(name) for name in ("cpu", "gpu", "threads")}
    there |= {name: about.get(name) for name in ("greenformers", "torch", "transformers")}
    same = json.loads(json.dumps([asdict(base), {**asdict(job), "bound": job.bound.faster, "minutes": None}, there]))
    goes_on = resume and (out / ABOUT).is_file()
    if not goes_on:
        check_new(out)
    elif json.loads((out / ABOUT).read_text()) != same:
        raise ValueError(f"{out.name} holds a search with other settings than these, or of another machine or version")
    elif all(place.exists() for place in (out / BEST / run.SCORES, out / RESULTS, out / REPORT)):
        raise ValueError(f"{out.name} has nothing to resume: its search ran to its end")
    with each_alone() as others:
        hurdles, objective = _prepared(base, out, job, told, others)
        others.gathered(None)  # all have seen what is there
        best = _searched(hurdles, out, job, same, others, goes_on=goes_on)
        settings = hurdles.space.settings(best.genes)
        before = out / BEST / run.SETTINGS
        if others.rank == 0 and before.is_file() and run.settings_of(out / BEST, type(settings)) != settings:
            shutil.rmtree(out / BEST)  # of another loss, or of fewer minutes, which chose another network
        others.gathered(None)
    for name, chosen in {BASE: base, BEST: settings}.items():
        run.ensure(out / name, chosen, console)
    records = _records(hurdles, base.data, out, objective, about) if first_process() else []
    return Found(hurdles, best, settings, records)


def _searched(hurdles: Hurdles, out: Path, job: NetworkJob, same: object, others: Others, *, goes_on: bool) -> Trial:
    """The network that a search finds."""
    if others.rank == 0:
        (out / ABOUT).parent.mkdir(parents=True, exist_ok=True)
        checkpoint.replace(out / ABOUT, json.dumps(same))
    first = hurdles.train(hurdles.space.start, hurdles.plan.rungs[0])
    least = least_minutes(first.seconds)
    if least > job.minutes:
        if not goes_on and others.rank == 0:  # what an earlier run has tried stays
            shutil.rmtree(out)
        raise ValueError(
            f"minutes must be at least {least:.1f} for a network that takes {RUNGS[0] * first.seconds:.0f} s to train, "
            f"got {job.minutes:g}"
        )
    full = RUNGS[0] * first.seconds
    # After this no new network is tried.
    hurdles.plan = replace(hurdles.plan, seconds=max(2 * full, 60 * job.minutes - AFTER * full))
    hurdles.begin()
    if job.strategy == "one-shot":
        by_one_shot(hurdles, (out / TRIALS).parent)
    else:
        {"evolution": by_evolution, "random": by_chance}[job.strategy](hurdles)
    return again(hurdles, out, others)


def least_minutes(seconds: float) -> float:
    """The least minutes of a search whose first training, for the fewest steps, took so many seconds."""
    return (2 + AFTER) * RUNGS[0] * seconds / 60


def again(hurdles: Hurdles, out: Path, others: Others | None = None) -> Trial:
    """The best network by the mean of trainings with several seeds, of those that were trained in full."""
    steps, bound = hurdles.plan.rungs[-1], hurdles.plan.bound
    others = Others() if others is None else others
    start = hurdles.space.start
    top = sorted(hurdles.tries.trials.done(steps), key=lambda trial: -hurdles.merit(trial))
    top = [trial for trial in top if trial.genes != start][:TOP]
    means = [Trial(start, steps, 1.0, 0.0, 1.0)]
    trainings: dict[Genes, list[Trial]] = {trial.genes: [trial] for trial in top}
    for seed in range(1, AGAIN + 1):
        trials = Trials(out / TRIALS.replace("trials", f"trials-{seed}"), others.rank)
        lab = NetworkLab(
            hurdles.space, hurdles.lab.objective, hurdles.lab.seed + seed, measured_once=trials.measured_once
        )  # fmt: skip
        once_more = Hurdles(hurdles.space, lab, hurdles.plan, Tries(trials, others=others))
        once_more.train_all([*trainings], steps)
        for trial in trials.done(steps):
            trainings[trial.genes].append(trial)
    for genes, done in trainings.items():
        if len(done) <= AGAIN:  # trained once more it failed
            continue
        figures = {name: mean(getattr(trial, name) for trial in done) for name in ("speed", "lost", "smaller")}
        means.append(Trial(genes, steps, **figures))
    return bound.nearest(means)


def _prepared(
    base: Settings, out: Path, job: NetworkJob, told: Callable[[Hurdles, Trial], None], others: Others
) -> tuple[Hurdles, Objective]:
    for name in UNSEARCHED:
        if getattr(base, name) != getattr(Settings, name):
            raise ValueError(f"{name} is not for a search: it must be left out, got {getattr(base, name)}")
    if control(base.variant) is not None:
        raise ValueError(f"variant {base.variant} is a control of lrt, which is not for a search: name another")
    task = base.task()
    if isinstance(task.objective, ReplacedTokenDetection):
        raise ValueError(
            "a search judges networks by a score, and replaced_token_detection leaves an encoder without one: search "
            "with the objective of the task that it is for"
        )
    task.objective.size("test")  # on which both networks are scored in the end
    objective = with_validation(task.objective)
    steps = base.schedule.stream(objective).steps
    low_rank.check(task.network(), base.low_rank_training, steps)  # a network of the settings can be
    space = NetworkSpace.of(base, objective, job.vary, job.attentions)
    if job.strategy == "one-shot":
        parts_of(space)
        if others.count > 1:
            raise ValueError("the strategy one-shot trains one network of all: start it without torchrun")
    least = 2 if base.low_rank_training == "dense_first" else 1
    rungs = tuple(dict.fromkeys(max(least, steps // part) for part in RUNGS))
    plan = NetworkPlan(job.bound, rungs, 60 * job.minutes, base.seed)
    trials = Trials(out / TRIALS, others.rank)
    lab = NetworkLab(space, objective, base.seed, job.bound.faster or 1.0, trials.measured_once)
    hurdles = Hurdles(space, lab, plan, Tries(trials, lambda trial: told(hurdles, trial), others=others))
    return hurdles, task.objective


def _records(hurdles: Hurdles, data: str, out: Path, objective: Objective, about: dict[str, Any]) -> list[Record]:
    """Scores of both networks on the test split, their parameters, and the speed of one over the other."""
    models = {BASE: run.trained(out / BASE), BEST: run.trained(out / BEST)}
    same: dict[str, Any] = {"benchmark": "search", "setting": {"data": data, "split": "test"}, "context": about}
    rows = []
    for name, model in models.items():
        value = objective.evaluate(model, "test", hurdles.space.base.batch)[objective.metric]
        rows.append(Record.of(objective.metric, value, variant=name, **same))
        rows.append(Record.of("parameters", parameters(model), variant=name, source="counted", **same))
    speed = hurdles.lab.speed_up(models[BASE], models[BEST])
    return [*with_ratios(rows, to=BASE), Record.of("speed", speed, variant=BEST, **same)]
