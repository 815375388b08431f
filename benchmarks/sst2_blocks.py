"""Sentiment of sentences (SST-2) by networks of full attention, of star, bp and isab layers, at equal steps.

    python benchmarks/sst2_blocks.py [--quick] [--seed N] [--json results/sst2_blocks.jsonl]

3 layers of d 128, byte-pair tokens, mean pooling, 2,000 steps of 32 sentences from scratch, without pre-trained
vectors; accuracy on the 872 sentences of dev, of which one standard error is 1.4 points. The published tables printed
below are of other data and sizes: what carries over is the order of the methods. With --json a run that is in the file
is not repeated.
"""

import argparse
import sys
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.table import Table
from transformers import logging

from greenformers.measure.record import Record, append, context, read
from greenformers.train.fit import Schedule, fit
from greenformers.train.settings import Settings

BENCHMARK = "sst2_blocks"
VARIANTS = ("transformer", "star", "bp", "isab")
STEPS, BATCH = 2000, 32


def trained(variant: str, seed: int, steps: int, data: Path, command: str) -> list[Record]:
    """Train and score one.

    Raises:
        KeyboardInterrupt: a signal ended it early.
    """
    settings = Settings(
        data="sst2", folder=str(data / "sst2"), variant=variant, hidden=128, layers=3, heads=4, feed_forward=512,
        length=64, pooling="mean", position="sinusoidal", dropout=0.1, seed=seed,
    )  # fmt: skip
    task = settings.task()
    model = task.network()
    schedule = Schedule(
        steps=steps, batch_size=BATCH, learning_rate=1e-3, seed=seed, log_every=steps, evaluate_every=steps,
        save_every=steps,
    )  # fmt: skip
    history = fit(model, task.objective, schedule, label=variant, console=Console(quiet=True))
    if history.stopped is not None:
        raise KeyboardInterrupt
    setting = {"steps": steps, "batch": BATCH, "seed": seed, "hidden": 128, "layers": 3}
    scores = task.objective.evaluate(model, "valid", BATCH)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    about = context(command, seed)
    found = (
        ("accuracy", scores["accuracy"], "%"),
        ("train_time", history.seconds, "s"),
        ("parameters", float(parameters), ""),
    )
    return [Record(BENCHMARK, variant, setting, metric, value, unit, context=about) for metric, value, unit in found]


def show(console: Console, records: list[Record], steps: int) -> None:
    table = Table("layers", "accuracy by seed, %", "mean", "parameters", "s of training", title=f"after {steps} steps")
    for variant in VARIANTS:
        own = [record for record in records if record.variant == variant and record.setting["steps"] == steps]
        values = {
            metric: [record.value for record in own if record.metric == metric]
            for metric in ("accuracy", "parameters", "train_time")
        }
        if own:
            table.add_row(
                variant,
                ", ".join(f"{value:.1f}" for value in values["accuracy"]),
                f"{mean(values['accuracy']):.1f}",
                f"{values['parameters'][0] / 1e6:.2f} M",
                f"{mean(values['train_time']):.0f}",
            )
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the data sets' folders")
    parser.add_argument("--references", type=Path, default=Path("../shared/reference"), help="published tables")
    parser.add_argument("--seed", type=int, help="one seed; by default 0 and 1")
    parser.add_argument("--quick", action="store_true", help="hardly any training; the figures mean nothing")
    parser.add_argument("--json", type=Path, help="file the records are added to, and known runs are read from")
    given = parser.parse_args()
    if not (given.data / "sst2").is_dir():
        parser.exit(message=f"skipped: sst2 is not in {given.data}; name the folder with --data\n")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    steps = 4 if given.quick else STEPS
    records = read(given.json) if given.json and given.json.exists() else []
    for seed in (0, 1) if given.seed is None else (given.seed,):
        for variant in VARIANTS:
            at = (variant, seed, steps)
            if any((r.variant, r.setting["seed"], r.setting["steps"]) == at for r in records):
                continue
            command = "python benchmarks/sst2_blocks.py" + " --quick" * given.quick
            try:
                found = trained(variant, seed, steps, given.data, command)
            except KeyboardInterrupt:
                print("stopped; the same command goes on")
                return 1
            records += found
            if given.json:
                append(given.json, found)
            print(f"{variant}, seed {seed}: {found[0].value:.1f} %, {found[1].value:.0f} s", flush=True)
    console = Console(width=120)
    show(console, records, steps)
    for name in ("slides_star_transformer", "slides_bpt_sst5_imdb"):
        if (given.references / f"{name}.csv").is_file():
            console.print(f"published: {name}", (given.references / f"{name}.csv").read_text(), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
