"""Lottery tickets of a small transformer on handwritten digits, beside a random mask and newly drawn weights.

    python benchmarks/lottery_ticket.py [--quick] [--json results/lottery_ticket.jsonl]

Frankle 2019 (arXiv:1803.03635) claims that winning tickets of 10-20 % of the weights, found by rounds of magnitude
pruning, reach the accuracy of the dense network in as many steps, and that the same masks with newly drawn weights do
not. Two layers of width 64 classify images of 4x4 pixels; 12 rounds drop 20 % each of the weights of linear layers, and
the others go back to their initial values. Rounds 4, 8 and 12 (41, 17 and 7 % left) are compared with controls of as
many weights, trained for as many steps. Three seeds; 95 % intervals are Student's, of differences seed by seed. The
learning rate was not tuned. One of the 360 test images is 0.28 %. Stopped at any moment, the same command goes on.
"""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from _harness import KNOWN, RUNS, Benchmark, Option, Run, fitted, yes
from rich.table import Table
from safetensors.torch import load_file

from greenformers.measure.record import Record
from greenformers.train.lottery import Masked, shuffled
from greenformers.train.rounds import LEFT, MASK
from greenformers.train.run import ensure
from greenformers.train.settings import Settings

SEEDS = (0, 1, 2)
STUDENT = 4.303  # 97.5 % of Student's t with two degrees of freedom
VARIANTS = ("ticket", "random", "reinit")
REDRAWN = 1000  # added to the seed of newly drawn weights

BASE = Settings(
    data="digits", pool=2, hidden=64, layers=2, heads=4, feed_forward=256, epochs=12, batch=64,
    evaluate_every=10**6, log_every=100, save_every=200, lottery_rounds=12, lottery_drop=0.2,
)  # fmt: skip
AT = (4, 8, 12)
QUICK: dict[str, Any] = {"pool": 4, "hidden": 16, "feed_forward": 32, "epochs": 1, "lottery_rounds": 3}
QUICK_AT = (1, 2, 3)

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="under two minutes; the figures mean nothing",
    json=KNOWN,
    threads=1,
    options=(
        Option("--seed", "one seed; by default 0, 1 and 2", int, least=0),
        Option("--runs", "run folders, to go on from", Path, RUNS / "lottery_ticket"),
    ),
)


def main(run: Run) -> None:
    base, at = (replace(BASE, **QUICK), QUICK_AT) if run.quick else (BASE, AT)
    seeds = SEEDS if run.given.seed is None else (run.given.seed,)
    trainings = [(variant, seed) for seed in seeds for variant in VARIANTS]
    records = run.trainings(
        trainings, partial(place, base), partial(measure, run, base, at), lambda new: f"{new[-1].value:.2f} %"
    )
    scores = {(record.variant, record.setting["round"], record.setting["seed"]): record for record in records
              if record.setting.items() >= place(base, ("", record.setting["seed"]))[1].items()}  # fmt: skip
    run.show(table(scores, at, seeds))
    if len(seeds) == len(SEEDS):
        conclude(scores, at, seeds)


def place(base: Settings, training: tuple[str, int]) -> tuple[str, dict[str, Any]]:
    """Variant and setting of the records of a training."""
    variant, seed = training
    return variant, {"data": base.data, "hidden": base.hidden, "epochs": base.epochs, "seed": seed}


def measure(run: Run, base: Settings, at: tuple[int, ...], training: tuple[str, int]) -> list[Record]:
    """Test accuracy of one variant after the rounds to compare; with the ticket, that of the dense network too."""
    variant, setting = place(base, training)
    settings = replace(base, seed=setting["seed"])
    folder = run.given.runs / ("quick" if run.quick else "whole") / str(settings.seed)
    ensure(folder, settings, run.console)
    records = []
    for number in (0, *at) if variant == "ticket" else at:
        own = folder / "rounds" / str(number)
        scores = read_scores(own)
        accuracy = scores["accuracy"] if variant == "ticket" else controlled(settings, variant, own)
        records.append(
            run.record(
                "test_accuracy", accuracy, variant if number else "dense",
                {**setting, "round": number, LEFT: round(scores[LEFT], 4)}, seed=settings.seed,
            )
        )  # fmt: skip
    return records


def read_scores(folder: Path) -> dict[str, float]:
    """The scores of a round."""
    scores: dict[str, float] = json.loads((folder / "scores.json").read_text())
    return scores


def controlled(settings: Settings, variant: str, folder: Path) -> float:
    """Test accuracy of a control of one round, trained as the round was; images of digits have no validation split."""
    masks = load_file(folder / MASK)
    if variant == "random":
        masks = shuffled(masks, settings.seed)
    task = settings.task()
    drawn = settings if variant == "random" else replace(settings, seed=settings.seed + REDRAWN)
    model = drawn.task().network()
    history = fitted(model, task.objective, settings.schedule, variant, Masked(masks))
    return history.curve("eval_accuracy")[-1][1]


Scores = dict[tuple[str, int, int], Record]


def values(scores: Scores, variant: str, number: int, seeds: tuple[int, ...]) -> list[float]:
    """Accuracy of a variant in a round, seed by seed."""
    return [scores[variant, number, seed].value for seed in seeds]


def interval(first: list[float], second: list[float]) -> tuple[float, float]:
    """95 % interval of the mean difference over three seeds."""
    differences = [a - b for a, b in zip(first, second, strict=True)]
    half = STUDENT * stdev(differences) / len(differences) ** 0.5
    return mean(differences) - half, mean(differences) + half


def table(scores: Scores, at: tuple[int, ...], seeds: tuple[int, ...]) -> Table:
    """Mean accuracy by weights left, with intervals of the differences to the dense network."""
    dense = values(scores, "dense", 0, seeds)
    shown = Table(
        "round", "weights left, %", *VARIANTS, title=f"digits: test accuracy, %; dense {mean(dense):.2f}; in brackets "
        "the 95 % interval of the difference to dense",
    )  # fmt: skip
    for number in at:
        cells = []
        for variant in VARIANTS:
            own = values(scores, variant, number, seeds)
            low_high = "" if len(seeds) < len(SEEDS) else " ({:+.2f} to {:+.2f})".format(*interval(own, dense))
            cells.append(f"{mean(own):.2f}{low_high}")
        shown.add_row(str(number), f"{100 * scores['ticket', number, seeds[0]].setting[LEFT]:.1f}", *cells)
    return shown


def conclude(scores: Scores, at: tuple[int, ...], seeds: tuple[int, ...]) -> None:
    """Print, for each size, whether what the paper claims is seen."""
    dense = values(scores, "dense", 0, seeds)
    for number in at:
        ticket = values(scores, "ticket", number, seeds)
        reaches = interval(ticket, dense)[1] >= 0
        share = 100 * scores["ticket", number, seeds[0]].setting[LEFT]
        print(f"{share:.0f} % left: the ticket is not seen to be below dense: {yes(reaches)}", end="")
        for variant in VARIANTS[1:]:
            low, high = interval(ticket, values(scores, variant, number, seeds))
            print(f"; above {variant}: {yes(low > 0)} ({low:+.2f} to {high:+.2f})", end="")
        print()


if __name__ == "__main__":
    BENCHMARK.run(main)
