"""Sentiment of sentences (SST-2) by networks of full attention, of star, bp and isab layers, at equal steps.

    python benchmarks/sst2_blocks.py [--quick] [--seed N] [--json results/sst2_blocks.jsonl]

3 layers of d 128, byte-pair tokens, mean pooling, 2,000 steps of 32 sentences from scratch, without pre-trained
vectors; accuracy on the 872 sentences of dev, of which one standard error is 1.4 points. The published tables printed
below are of other data and sizes: what carries over is the order of the methods. With --json a run that is in the file
is not repeated.
"""

from pathlib import Path
from statistics import mean

from _harness import KNOWN, REFERENCE, SEED, Benchmark, Option, Run, data, fitted
from rich.table import Table

from greenformers.measure.record import Record
from greenformers.train.schedule import Schedule
from greenformers.train.settings import Settings

VARIANTS = ("transformer", "star", "bp", "isab")
STEPS, BATCH = 2000, 32

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any training; the figures mean nothing",
    options=(
        data("--data", ".", "folder of the data sets' folders", "sst2"),
        Option("--references", "published tables", Path, REFERENCE),
        SEED,
    ),
    json=KNOWN,
)


def main(run: Run) -> None:
    steps = 4 if run.quick else STEPS
    records = run.trainings(
        [(variant, seed) for seed in run.seeds for variant in VARIANTS],
        lambda training: (training[0], {"seed": training[1], "steps": steps}),
        lambda training: trained(run, *training, steps),
        lambda own: f"{own[0].value:.1f} %, {own[1].value:.0f} s",
    )
    run.show(shown(records, steps))
    run.published("slides_star_transformer", "slides_bpt_sst5_imdb")


def trained(run: Run, variant: str, seed: int, steps: int) -> list[Record]:
    """Train a network and score it."""
    settings = Settings(
        data="sst2", folder=str(run.given.data / "sst2"), variant=variant, hidden=128, layers=3, heads=4,
        feed_forward=512, length=64, pooling="mean", position="sinusoidal", dropout=0.1, seed=seed,
    )  # fmt: skip
    task = settings.task()
    model = task.network()
    schedule = Schedule(
        steps=steps, batch_size=BATCH, learning_rate=1e-3, seed=seed, log_every=steps, evaluate_every=steps,
        save_every=steps,
    )  # fmt: skip
    history = fitted(model, task.objective, schedule, variant)
    setting = {"steps": steps, "batch": BATCH, "seed": seed, "hidden": 128, "layers": 3}
    figures = {
        "accuracy": task.objective.evaluate(model, "valid", BATCH)["accuracy"],
        "train_time": history.seconds,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    return [run.record(metric, value, variant, setting, seed=seed) for metric, value in figures.items()]


def shown(records: list[Record], steps: int) -> Table:
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
    return table


if __name__ == "__main__":
    BENCHMARK.run(main)
