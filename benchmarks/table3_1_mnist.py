"""Thesis, table 3.1: Transformer, LRT, Linformer and both on MNIST, pixel by pixel, beside the published figures.

    python benchmarks/table3_1_mnist.py [--full | --quick] [--seeds 3] [--ways lrt,narrow] [--rates 0.5,1,2]
        [--images 10000] [--epochs 3] [--json results/table3_1_mnist.jsonl]

By default the setting for a machine without a GPU: images of 14x14, 10,000 of them, 3 epochs. `--full` is the thesis'
own, for a GPU: 785 positions, 8 epochs, 55,000 of the 60,000 images, in batches of 64. Beside low rank stand dense
networks of smaller width with as many parameters (narrow) or FLOPs (narrow_flops), each trained by Muon and by AdamW.
The learning rate of each is that of the grid with the best accuracy on 5,000 training images of which nothing is
learnt, after a training with seed 0: AdamW's at 0.5, 1 and 2 times 5e-4 (1e-3 with --full), Muon's at five times these.
With several seeds, intervals are of the mean over them, seed by seed; with one, of the test images. Time is that of all
steps, from some of them of all networks by turns. Bar: low rank at most 0.3 points below the dense network, in no more
time. Stopped at any moment, the same command goes on; what the file of --json has is not repeated.
"""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from _harness import REFERENCE, RUNS, Benchmark, Option, Run, data
from _study import Study, Trained, Values, beside, means, study
from _train_times import bar, train_times
from _ways import DENSE, OPTIONS, Plan, Way, ways
from rich.table import Table
from torch import Tensor

from greenformers.data import Split, Splits, load_images
from greenformers.data._draw import stratified
from greenformers.measure.device import accelerator
from greenformers.measure.parameters import parameters
from greenformers.measure.quality import accuracy, correct, paired_difference, predict
from greenformers.measure.record import Record
from greenformers.train import checkpoint
from greenformers.train.run import settings_of, trained
from greenformers.train.settings import Settings

PUBLISHED = {DENSE: "Transformer", "lrt": "LRT r=64", "linformer": "Linformer k=64"}
# The printed parameter counts include a word embedding that pixels do not use, and a pooler, both of width 256.
UNUSED = 30_522 * 256 + 256 * 256 + 256

SETTINGS = Settings(
    data="mnist", hidden=256, layers=4, heads=8, feed_forward=1024, rank=64, residual="pre", dropout=0.0,
    pool=2, limit=10_000, epochs=3, batch=8, learning_rate=5e-4, precision="bf16",
    evaluate_every=10**6, log_every=25, save_every=100,
)  # fmt: skip
K, SIDE = 64, 28
CHOICE = 5_000
"""Training images by which rates are chosen."""
FULL: dict[str, Any] = {"pool": 1, "limit": 60_000 - CHOICE, "epochs": 8, "batch": 64, "learning_rate": 1e-3}
QUICK: dict[str, Any] = {
    "pool": 4,
    "limit": 500,
    "epochs": 1,
    "hidden": 64,
    "feed_forward": 256,
    "rank": 16,
    "log_every": 5,
}
LOST = 0.3

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="under two minutes; the figures mean nothing",
    options=(
        data("--folder", "mnist", "the idx files of MNIST"),
        Option("--reference", "the published figures", Path, REFERENCE / "thesis_table3_1_mnist.csv"),
        Option("--runs", "run folders, to go on from", Path, RUNS / "table3_1"),
        Option("--full", "the thesis' setting; for a GPU", bool, default=False),
        Option("--images", "training images to learn from, if not those of the setting", int),
        Option("--epochs", "passes over them, if not those of the setting", int),
        *OPTIONS,
    ),
)


def main(run: Run) -> bool:
    given = run.given
    size = "full" if given.full else "quick" if run.quick else "small"
    base = replace(SETTINGS, folder=str(given.folder), **{"full": FULL, "quick": QUICK, "small": {}}[size])
    for option, name in (("images", "limit"), ("epochs", "epochs")):
        if getattr(given, option) is not None:
            base = replace(base, **{name: getattr(given, option)})
    if not 10 <= (base.limit or 0) <= FULL["limit"]:
        run.refuse(f"--images must be in 10..{FULL['limit']}, got {base.limit}")
    plan = Plan.asked(run, every(16 if run.quick else K))
    return measure(run, base, given.runs / f"{size}-{base.limit}-{base.epochs}", plan, given.reference)


def every(k: int) -> dict[str, Way]:
    """All ways, with Linformer's projected length."""
    linformer = {name: Way(name, more={"k": k}, quick="+" not in name) for name in ("linformer", "lrt+linformer")}
    return ways() | linformer


def measure(run: Run, base: Settings, runs: Path, plan: Plan, reference: Path) -> bool:
    """Train all that is planned, resumed or read; show and write accuracies, parameters and times.

    Returns:
        Whether low rank met its bar; a quick run always does.
    """
    setting, averages = place(base), list[Record]()
    accuracies = dict[str, dict[str, list[float]]]()
    test = load_images(base.data, base.folder, None, base.pool, 0).test  # all of it, however few are learnt from
    right: dict[int, dict[str, Tensor]] = {seed: {} for seed in range(plan.seeds)}

    def judge(name: str, own: Trained) -> list[Record]:
        seed = own.settings.seed
        data = replace(load_images(base.data, base.folder, base.limit, base.pool, seed), test=test)
        return judged(run, own, name, setting | {"seed": seed}, data, right[seed])

    ran = study(run, plan, base, runs, "accuracy", setting, validated, judge)
    records = [record for own in ran.judged.values() for each in own for record in each]
    for metric in ("train_accuracy", "test_accuracy"):
        accuracies[metric] = {
            name: [each.value for each in records if (each.variant, each.metric) == (name, metric)] for name in ran.best
        }
        averages += means(run, metric, accuracies[metric], setting)
    times = train_times(run, ran, setting)
    run.show(ran.table(), table(ran, records, accuracies, times, reference))
    run.write([*averages, *times.values()])
    return bar(ran, "test_accuracy", accuracies["test_accuracy"], times, "lrt", LOST) or run.quick


def place(base: Settings) -> dict[str, Any]:
    """What all records of a size have in their settings."""
    length = (SIDE // base.pool) ** 2 + 1
    return {"data": "mnist", "length": length, "images": base.limit, "epochs": base.epochs}


def by_records(run: Run, base: Settings, runs: Path, names: Sequence[str]) -> bool | None:
    """What `measure` returned for these ways, by the file of `--json`; None where it does not have all of them."""
    at = place(base).items()
    records = [own for own in run.known() if own.benchmark == run.benchmark.name and own.setting.items() >= at]
    times = {own.variant: own for own in records if own.metric == "train_time"}
    accuracies = {
        own.variant: [own.value] for own in records if own.metric == "test_accuracy" and "seeds" in own.setting
    }
    if not {*names} <= times.keys() & accuracies.keys():
        return None
    scores = {own.variant: own.value for own in records if own.metric == "accuracy"}  # none where a training diverged
    ran = Study("accuracy", {}, {name: [Trained(base, runs, scores.get(name, math.nan))] for name in names})
    return bar(ran, "test_accuracy", {name: accuracies[name] for name in names}, times, "lrt", LOST) or run.quick


def validated(folder: Path, _: Mapping[str, float]) -> float:
    """The accuracy of a finished run on training images of which it learnt nothing; computed once a run."""
    path = folder / "valid.json"
    if not path.exists():
        images = held_out(settings_of(folder, Settings))
        checkpoint.replace(path, json.dumps(accuracy(*predict(on_device(folder), images, batch_size=64))))
    return float(json.loads(path.read_text()))


def held_out(settings: Settings) -> Split:
    """The first training images that a run does not learn from."""
    whole = load_images(settings.data, settings.folder, None, settings.pool, settings.seed).train
    assert settings.limit is not None
    rest = torch.ones(len(whole), dtype=torch.bool)
    rest[stratified(whole.labels, settings.limit, settings.seed)] = False
    places = rest.nonzero().flatten()[: min(CHOICE, settings.limit)]
    return replace(whole, pixels=whole.pixels[places], labels=whole.labels[places])


def on_device(folder: Path) -> Any:
    """The trained model of a finished run, on the accelerator where there is one."""
    model: Any = trained(folder)
    return model.to(accelerator())


def answers(folder: Path, data: Splits) -> dict[str, Tensor]:
    """Which training and which test images a trained variant gets right; computed once a run."""
    path = folder / "answers.json"
    if not path.exists():
        model = on_device(folder)
        parts = {"train": data.train, "test": data.test}
        hits = {name: correct(*predict(model, part, batch_size=64)) for name, part in parts.items()}
        checkpoint.replace(
            path, json.dumps({name: "".join("01"[bit] for bit in right) for name, right in hits.items()})
        )
    return {name: torch.tensor([bit == "1" for bit in bits]) for name, bits in json.loads(path.read_text()).items()}


def judged(
    run: Run, own: Trained, variant: str, setting: dict[str, Any], data: Splits, right: dict[str, Tensor]
) -> list[Record]:
    """The figures of one trained variant: those that are known, or else found out and written.

    `right` collects which test images each variant gets right. Where that of the dense network is not at hand, there is
    no interval of these images.
    """
    at = setting | own.rates
    known = [run.remembered(metric, variant, at) for metric in ("parameters", "train_accuracy", "test_accuracy")]
    if all(known):
        return [record for record in known if record is not None]
    folder = own.at_hand(run)
    hits = answers(folder, data)
    right[variant] = hits["test"]
    interval = None
    if variant != DENSE and DENSE in right:
        _, low, high = paired_difference(right[variant], right[DENSE])
        interval = [low, high]
    figures = {
        "parameters": (parameters(trained(folder)), None),
        "train_accuracy": (100 * hits["train"].double().mean().item(), None),
        "test_accuracy": (100 * right[variant].double().mean().item(), interval),
    }
    records = [
        run.record(metric, value, variant, at, interval=between, to=DENSE if between else None, seed=own.settings.seed)
        for metric, (value, between) in figures.items()
    ]
    run.write(records)
    return records


def table(
    ran: Study, records: list[Record], accuracies: Mapping[str, Values], times: Mapping[str, Record], reference: Path
) -> Table:
    """Ours, the means over seeds, beside the published figures."""
    figures = {(record.variant, record.metric): record for record in reversed(records) if "seed" in record.setting}
    published = {}
    if reference.exists():
        with reference.open() as file:
            published = {row["model"]: row for row in csv.DictReader(file)}
    shown = Table(
        "variant", "rate", "parameters (M)", "as the thesis counts", "published", "train %", "published", "test %",
        "published", "test, minus transformer: 95 % interval", "time of transformer",
        title=f"MNIST: {times[DENSE].setting}",
    )  # fmt: skip
    test = accuracies["test_accuracy"]
    for variant, trainings in ran.best.items():
        count = figures[variant, "parameters"].value
        row = published.get(PUBLISHED.get(variant, ""), {})
        printed = [float(row[key]) if row else None for key in ("parameters", "train_accuracy", "test_accuracy")]
        between = figures[variant, "test_accuracy"].interval
        if len(trainings) == 1 and between is not None:
            interval = f"{between[0]:+.2f} to {between[1]:+.2f}"
        else:
            interval = beside(test, variant) or "-"
        shown.add_row(
            variant, f"{trainings[0].rate:g}", f"{count / 1e6:.2f}", f"{(count + UNUSED) / 1e6:.2f}",
            "-" if printed[0] is None else f"{printed[0] / 1e6:.1f}",
            f"{fmean(accuracies['train_accuracy'][variant]):.2f}",
            "-" if printed[1] is None else f"{100 * printed[1]:.2f}",
            f"{fmean(test[variant]):.2f}", "-" if printed[2] is None else f"{100 * printed[2]:.2f}", interval,
            f"{1 / (times[variant].ratio or 1):.2f}",
        )  # fmt: skip
    return shown


if __name__ == "__main__":
    BENCHMARK.run(main)
