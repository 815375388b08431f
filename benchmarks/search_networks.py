"""Searches for networks to be trained: evolution, DARTS and chance at as much compute, five seeds, two data sets.

    python benchmarks/search_networks.py [--quick] [--data digits] [--json results/search_networks.jsonl]
    python benchmarks/search_networks.py --draw --json results/search_networks.jsonl [--picture docs/networks.png]

The best network at twice the speed of a base: of images of digits, or of characters of Tiny Shakespeare. In a wide
space everything varies, in a narrow one what one network of all choices can hold: attention, rank and depth. Every
search has as many seconds of the processor; its best is trained with two seeds that it has not seen, on all of the
training split, and judged on the test split beside the base. Strategies are compared by seed: the mean difference of
what is kept of the quality, 0 where no network was fast enough, and its 95 % interval by Student's t. One that was
stopped goes on, and what is in the file of --json is not searched for again.
"""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from _harness import DATA, KNOWN, RUNS, Benchmark, Option, Run, yes
from matplotlib.figure import Figure
from rich.table import Table
from scipy.stats import t as student

from greenformers.measure.record import Record, read
from greenformers.report.plot import looks, new_figure, save, settle
from greenformers.search.bound import Bound
from greenformers.search.hurdles import Hurdles, NetworkPlan, by_chance, by_evolution
from greenformers.search.network_lab import NetworkLab, with_validation
from greenformers.search.network_run import RUNGS, again
from greenformers.search.network_space import PARTS, NetworkSpace
from greenformers.search.one_shot import by_one_shot
from greenformers.search.trials import Trials
from greenformers.search.tries import Tries
from greenformers.train.settings import Settings

FASTER, SEEDS, JUDGED = 2.0, 5, (100, 101)
ATTENTIONS = ("full", "linformer", "linear_transformer", "sliding_window")
CAUSAL = ("full", "performer", "linear_transformer", "sliding_window")
NARROW = ("attention", "rank", "layers")
STRATEGIES = {"wide": ("evolution", "random"), "narrow": ("evolution", "random", "one-shot")}
NAMES = {"digits": "digits", "tinyshakespeare": "Tiny Shakespeare"}

SECONDS, TRYING = {"digits": 200.0, "tinyshakespeare": 400.0}, 0.6
"""Compute of a search without its last trainings, and the share of it after which no new network is tried."""

STEPS, QUICK_STEPS = {"digits": 180, "tinyshakespeare": 400}, 20
"""Steps of a whole training."""

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="one seed and a few seconds; the figures mean nothing",
    options=(
        Option("--data", "data set", default="digits", choices=tuple(SECONDS)),
        Option("--folder", "folder of Tiny Shakespeare", Path, DATA / "tinyshakespeare"),
        Option("--draw", "only table and picture, of the records", bool, default=False),
        Option("--picture", "file the picture is drawn into", Path),
        Option("--runs", "folder of the searches, to go on from", Path, RUNS / "search_networks"),
    ),
    json=KNOWN,
)


def steps_of(run: Run, name: str) -> int:
    """Steps of a training on a data set."""
    return QUICK_STEPS if run.quick else STEPS[name]


def base(run: Run) -> Settings:
    """The network that others are compared with, and how networks are trained."""
    steps = steps_of(run, run.given.data)
    if run.given.data == "digits":
        return Settings(steps=steps, limit=200 if run.quick else None, optimizer="adamw")
    return Settings(
        data="tinyshakespeare", folder=str(run.given.folder), tokenizer="characters", length=128, batch=16, hidden=64,
        layers=2, heads=4, feed_forward=256, steps=steps, learning_rate=3e-3,
        limit=600 if run.quick else None, optimizer="adamw",
    )  # fmt: skip


def main(run: Run) -> bool:
    given = run.given
    if given.draw and not given.json:
        run.refuse("--draw is of the records of --json")
    if given.draw:
        records = read(given.json)
    else:
        if given.data != "digits" and not given.folder.is_dir():
            return run.skip(f"{given.folder} is not there")
        records = searched(run)
    # The file may hold those of quick runs.
    records = [record for record in records if record.setting["steps"] == steps_of(run, record.setting["data"])]
    run.show(shown(records))
    if given.picture:
        save(picture(records), given.picture)
    return True


class Sought(NamedTuple):
    """One search: its space, its seed and its strategy."""

    space: str
    seed: int
    strategy: str


def searched(run: Run) -> list[Record]:
    """Records of all searches, those of this data set that are not known among them."""
    settings, name = base(run), run.given.data
    held = with_validation(settings.task().objective)
    attentions = ATTENTIONS if name == "digits" else CAUSAL
    spaces = {
        "wide": NetworkSpace.of(settings, held, PARTS, None),
        "narrow": NetworkSpace.of(settings, held, NARROW, attentions),
    }
    seeds = range(1 if run.quick else SEEDS)
    searches = [Sought(*parts) for space in STRATEGIES for parts in product([space], seeds, STRATEGIES[space])]

    def train(sought: Sought) -> list[Record]:
        folder = f"{'quick-' * run.quick}{name}-{sought.space}-{sought.strategy}-{sought.seed}"
        outcome = search(run, spaces[sought.space], sought.strategy, sought.seed, run.given.runs / folder)
        print(f"{name}, {sought.space}, seed {sought.seed}, {sought.strategy}: {outcome}", flush=True)
        setting = at(sought)[1]
        return [
            run.record("quality_share", 100 * outcome["kept"], sought.strategy, setting),
            run.record("speed", outcome["speed"], sought.strategy, setting),
        ]

    def at(sought: Sought) -> tuple[str, dict[str, Any]]:
        return sought.strategy, {"data": name, "space": sought.space, "seed": sought.seed, "steps": settings.steps}

    return run.trainings(searches, at, train, lambda new: f"{new[0].value:.2f} % at {new[1].value:.2f}x")


def search(run: Run, space: NetworkSpace, strategy: str, seed: int, folder: Path) -> dict[str, Any]:
    """What one search found, which is kept."""
    file = folder / "outcome.json"
    if file.is_file():
        read_again: dict[str, Any] = json.loads(file.read_text())
        return read_again
    base, seconds = replace(space.base, seed=seed), 20.0 if run.quick else SECONDS[run.given.data]
    objective = base.task().objective
    held = with_validation(objective)
    rungs = tuple(dict.fromkeys(max(1, base.schedule.stream(held).steps // part) for part in RUNGS))
    plan = NetworkPlan(Bound(faster=FASTER), rungs, TRYING * seconds, seed)
    own = replace(space, base=base)
    trials = Trials(folder / "search/trials.jsonl")
    tries = Tries(trials, clock=time.process_time)
    hurdles = Hurdles(own, NetworkLab(own, held, seed, FASTER, trials.measured_once), plan, tries)
    ways: dict[str, Callable[[Hurdles], None]] = {
        "evolution": by_evolution, "random": by_chance, "one-shot": lambda hurdles: by_one_shot(hurdles, folder)
    }  # fmt: skip
    hurdles.begin()
    ways[strategy](hurdles)
    best = again(hurdles, folder)
    shares = []
    for judged in JUDGED:
        lab = NetworkLab(own, objective, judged)
        shares.append(lab.trained(best.genes, rungs[-1], "test")[1] / lab.trained(own.start, rungs[-1], "test")[1])
    fast = hurdles.plan.bound.met_by(best)  # a network that is too slow keeps nothing of what was asked for
    outcome = {
        "network": own.words(best.genes), "kept": mean(shares) if fast else 0.0, "speed": best.speed,
        "tried": len({trial.genes for trial in tries.trials.seen}), "seconds": tries.trials.seconds,
    }  # fmt: skip
    file.write_text(json.dumps(outcome))
    return outcome


def shown(records: list[Record]) -> Table:
    """Means by strategy, and their differences from chance by seed."""
    table = Table("data", "space", "strategy", "quality kept, %", "times as fast", "to random, 95 %", "better")
    for data, space in dict.fromkeys((r.setting["data"], r.setting["space"]) for r in records):
        chance = of(records, data, space, "random")
        for strategy in STRATEGIES[space]:
            shares, speeds = of(records, data, space, strategy), of(records, data, space, strategy, "speed")
            if not shares:
                continue
            low, high = interval([shares[seed] - chance[seed] for seed in shares.keys() & chance.keys()])
            told = "" if strategy == "random" else f"{low:+.2f} to {high:+.2f}"
            table.add_row(
                data, space, strategy, f"{mean(shares.values()):.2f}", f"{mean(speeds.values()):.2f}", told,
                "" if strategy == "random" else yes(low > 0),
            )  # fmt: skip
    return table


def of(records: list[Record], data: str, space: str, strategy: str, metric: str = "quality_share") -> dict[int, float]:
    """The values of a strategy by seed."""
    return {
        int(r.setting["seed"]): r.value for r in records
        if (r.setting["data"], r.setting["space"], r.variant, r.metric) == (data, space, strategy, metric)
    }  # fmt: skip


def interval(values: list[float]) -> tuple[float, float]:
    """The 95 % interval of a mean, by Student's t."""
    if len(values) < 2:
        return float("nan"), float("nan")
    half = float(student.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return mean(values) - half, mean(values) + half


def picture(records: list[Record]) -> Figure:
    """What is kept by strategy, a point for each seed."""
    places = list(dict.fromkeys((r.setting["data"], r.setting["space"]) for r in records))
    drawn = new_figure(8.6, 4.2, f"Networks at {FASTER:g} times the speed: quality kept, by seed (more is better)")
    widths = [len(STRATEGIES[space]) for _, space in places]
    axes = drawn.subplots(1, len(places), squeeze=False, sharey=True, width_ratios=widths)[0]
    dress = looks(["", "evolution", "random", "one-shot"])
    for ax, (data, space) in zip(axes, places, strict=True):
        for at, strategy in enumerate(STRATEGIES[space]):
            by_seed = of(records, data, space, strategy)
            shares = list(by_seed.values())
            look = dress[strategy]
            if not shares:
                continue
            beside = [at + 0.08 * (seed - SEEDS // 2) for seed in by_seed]  # some seeds end with the same network
            ax.scatter(beside, shares, color=look.colour, marker=look.marker, s=28)
            ax.plot([at - 0.3, at + 0.3], [mean(shares)] * 2, color=look.colour)
        ax.set_xticks(range(len(STRATEGIES[space])), STRATEGIES[space])
        ax.set_title(f"{NAMES[data]},\n{space} space")
        ax.set_xlim(-0.5, len(STRATEGIES[space]) - 0.5)
    axes[0].set_ylabel("quality of the base kept (%)")
    settle(drawn)
    return drawn


if __name__ == "__main__":
    BENCHMARK.run(main)
