"""Every mechanism as a small language model of bytes, at equal steps, batches and sizes, by its loss.

    python benchmarks/language_models.py [--quick] [--json results/language_models.jsonl] [--picture FILE]

Causal on Tiny Shakespeare for each mechanism that has a causal form, masked on WikiText-2 for all; several seeds, each
with its own weights and batches, the same for every mechanism. With --json a run that is in the file is not repeated,
so that the same command goes on where it was stopped.
"""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from transformers import logging, set_seed

from greenformers.attention import Shape, build, names
from greenformers.data import Text, train_tokenizer
from greenformers.data import load as load_data
from greenformers.measure.record import METRICS, Record, append, context, read
from greenformers.report.curves import save
from greenformers.report.loss_curves import loss_curves, losses
from greenformers.train.causal_lm import CausalLM
from greenformers.train.fit import Schedule, fit
from greenformers.train.masked_lm import MaskedLM
from greenformers.train.text import LanguageModelling

BASELINE = "full"
HIDDEN, HEADS, LAYERS, FEED_FORWARD = 64, 4, 2, 256
STEPS, TOKENS, RATE = 2000, 1024, 5e-3  # tokens of a step
DEVIATION = 0.08  # of the initial weights, about that of BERT's 0.02 at its width
EVALUATIONS = 10
CHARACTERS = {"train": 1_000_000, "valid": 50_000}
QUICK = {"train": 30_000, "valid": 2_000}


class Task(NamedTuple):
    """What is learnt: the data, the objective, the length of a block, and a title."""

    data: str
    objective: type[LanguageModelling]
    length: int
    title: str


# Longer blocks keep masked language models at the frequencies of bytes for more steps than there are here: with 128
# the plateau is left after 1600, with 64 after 600 (results/linformer_pretraining.jsonl).
TASKS = {
    "causal_lm": Task("tinyshakespeare", CausalLM, 256, "Causal, Tiny Shakespeare, N 256"),
    "masked_lm": Task("wikitext2", MaskedLM, 64, "Masked, WikiText-2, N 64"),
}
# A quarter of N in place of all keys, for those that have no causal form; the other mechanisms have their defaults.
OPTIONS: dict[str, dict[str, Any]] = {"linformer": {"k": 16}, "nystromformer": {"landmarks": 16}}
# What options make: rows of Tay 2020, arXiv:2005.00743, table 2, and Performer with new features now and then.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "synthesizer_random (fixed)": ("synthesizer_random", {"trained": False}),
    "performer (redrawn)": ("performer", {"redraw": 1000}),
    "full + synthesizer_random": ("synthesizer_random", {"mixed": True}),
    "full + synthesizer_dense": ("synthesizer_dense", {"mixed": True}),
}


class Run(NamedTuple):
    """One training: a variant (a mechanism and its options) in a task, from a seed."""

    task: str
    variant: str
    mechanism: str
    options: dict[str, Any]
    seed: int
    steps: int
    characters: int

    def setting(self, step: int) -> dict[str, Any]:
        """What tells its records from others."""
        length = TASKS[self.task].length
        return {
            "task": self.task, "length": length, "batch": TOKENS // length, "hidden": HIDDEN, "layers": LAYERS,
            "heads": HEADS, "feed_forward": FEED_FORWARD, "learning_rate": RATE, "deviation": DEVIATION,
            "options": self.options, "characters": self.characters, "steps": self.steps, "seed": self.seed,
            "step": step,
        }  # fmt: skip

    def ended(self, records: Sequence[Record]) -> bool:
        """Whether its last record, the time, is among these."""
        at = (self.variant, "train_time", self.setting(self.steps))
        return any((record.variant, record.metric, record.setting) == at for record in records)


def runs(steps: int, seeds: int, characters: int) -> list[Run]:
    """All of them, a seed after the other: stopped in between, some seeds are complete."""
    single = {name: (name, OPTIONS.get(name, {})) for name in sorted(names(), key=lambda name: name != BASELINE)}
    return [
        Run(task, variant, mechanism, options, seed, steps, characters)
        for seed in range(seeds)
        for task in TASKS
        for variant, (mechanism, options) in (single | VARIANTS).items()
        if task != "causal_lm" or has_causal_form(mechanism, options)
    ]


def has_causal_form(mechanism: str, options: dict[str, Any]) -> bool:
    length = TASKS["causal_lm"].length
    build(mechanism, Shape(HEADS, HIDDEN // HEADS, length), **options)  # wrong options are errors
    try:
        build(mechanism, Shape(HEADS, HIDDEN // HEADS, length, causal=True), **options)
    except ValueError:
        return False
    return True


def objective(task: str, data: Path, characters: dict[str, int]) -> LanguageModelling:
    """The task on the first bytes of its data; one token is one byte."""
    name, kind, length, _ = TASKS[task]
    text = load_data(name, data / name)
    assert isinstance(text, Text)
    train, valid = (text.split(split)[:count] for split, count in characters.items())
    return kind(Text(name, train, valid, ""), train_tokenizer("bytes", train, max_length=length), length)


def trained(run: Run, given: LanguageModelling, about: dict[str, Any]) -> list[Record]:
    """Train, with the validation loss at about ten steps. The seed is that of the weights and of the batches.

    Raises:
        KeyboardInterrupt: a signal ended it early.
    """
    set_seed(run.seed)
    model = given.build(
        given.config(
            hidden_size=HIDDEN, num_attention_heads=HEADS, intermediate_size=FEED_FORWARD, num_hidden_layers=LAYERS,
            hidden_dropout_prob=0.0, initializer_range=DEVIATION, residual="pre", position="sinusoidal",
            attention=run.mechanism, attention_options=run.options,
        )
    )  # fmt: skip
    schedule = Schedule(
        steps=run.steps, batch_size=TOKENS // given.length, learning_rate=RATE, seed=run.seed, log_every=run.steps,
        evaluate_every=max(1, run.steps // EVALUATIONS), save_every=run.steps,
    )  # fmt: skip
    history = fit(model, given, schedule, label=run.variant, console=Console(quiet=True))
    if history.stopped is not None:
        raise KeyboardInterrupt
    figures = [(step, "loss", value) for step, value in history.curve("eval_loss")]
    figures.append((run.steps, "train_time", history.seconds))
    return [
        Record("language_models", run.variant, run.setting(step), metric, value, METRICS[metric].unit, context=about)
        for step, metric, value in figures
    ]


def measure(todo: list[Run], given: argparse.Namespace, known: list[Record]) -> list[Record]:
    """The records known and those made here, which are kept as each run ends."""
    made: list[Record] = []
    objectives: dict[str, LanguageModelling] = {}
    left = [run for run in todo if not run.ended(known)]
    print(f"{len(todo) - len(left)} of {len(todo)} runs are known", flush=True)
    start = time.monotonic()
    for done, run in enumerate(left, start=1):
        if run.task not in objectives:
            objectives[run.task] = objective(run.task, given.data, QUICK if given.quick else CHARACTERS)
        about = context("python benchmarks/language_models.py" + " --quick" * given.quick, run.seed)
        found = trained(run, objectives[run.task], about)
        made += found
        if given.json:
            append(given.json, found)
        ahead = (time.monotonic() - start) / done * (len(left) - done)
        loss, pace = found[-2].value, 1000 * found[-1].value / run.steps
        what = f"{done}/{len(left)} {run.task} {run.variant}, seed {run.seed}"
        print(f"{what}: loss {loss:.4f}, {pace:.0f} ms a step; about {ahead / 60:.0f} min left", flush=True)
    return known + made


def of_runs(records: list[Record], wanted: list[Run]) -> list[Record]:
    """The records of these runs: a file may hold others, of other sizes."""
    settings = [(run.variant, run.setting(0)) for run in wanted]
    return [record for record in records if (record.variant, {**record.setting, "step": 0}) in settings]


def shown(task: str, records: list[Record], steps: int) -> Table:
    """Final losses of a task, best first, beside those of the baseline: noise is what its own seeds differ by, too."""
    ends = {variant: values[steps] for variant, values in losses(records, task).items() if steps in values}
    base = ends.get(BASELINE)
    table = Table("mechanism", "loss by seed", "mean", "bits a byte", "to full", "", "ms a step")
    table.title = f"{TASKS[task].title}: validation loss (nats a byte) after {steps} steps"
    for variant, values in sorted(ends.items(), key=lambda entry: mean(entry[1])):
        times = [
            1000 * r.value / steps
            for r in records
            if (r.variant, r.metric, r.setting["task"]) == (variant, "train_time", task)
        ]
        table.add_row(
            variant,
            ", ".join(f"{value:.4f}" for value in values),
            f"{mean(values):.4f}",
            f"{mean(values) / math.log(2):.3f}",
            "" if base is None else f"{mean(values) - mean(base):+.4f}",
            "" if base is None or variant == BASELINE else verdict(values, base),
            f"{min(times):.0f}",
        )
    return table


def verdict(values: list[float], base: list[float]) -> str:
    """Whether a difference is more than the seeds' own."""
    if min(len(values), len(base)) < 2:
        return "one seed: unknown"
    overlap = min(values) <= max(base) and min(base) <= max(values)
    return "within the seeds' range" if overlap else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of both data sets' folders")
    parser.add_argument("--steps", type=int, help=f"of each training; {STEPS} if not given")
    parser.add_argument("--seeds", type=int, help="trainings of each; 2 if not given")
    parser.add_argument("--only", metavar="NAME", help="one mechanism or variant, as the table names it")
    parser.add_argument("--quick", action="store_true", help="hardly any training; the figures mean nothing")
    parser.add_argument("--json", type=Path, help="file the records are added to, and known runs are read from")
    parser.add_argument("--picture", type=Path, help="PNG of the loss curves")
    given = parser.parse_args()
    if not all((given.data / task.data).is_dir() for task in TASKS.values()):
        parser.exit(message=f"skipped: the data sets are not in {given.data}; name the folder with --data\n")
    steps, seeds = given.steps or (4 if given.quick else STEPS), given.seeds or (1 if given.quick else 2)
    every = runs(steps, seeds, (QUICK if given.quick else CHARACTERS)["train"])
    todo = [run for run in every if given.only in (None, run.variant)]
    if not todo:
        parser.error(f"--only must be one of {', '.join(dict.fromkeys(run.variant for run in every))}")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    known = read(given.json) if given.json and given.json.exists() else []
    try:
        records = of_runs(measure(todo, given, known), every)
    except KeyboardInterrupt:
        print("stopped; the same command goes on")
        return 1
    for task in TASKS:
        Console(width=140).print(shown(task, records, steps))
    if given.picture:
        title = f"Language models of bytes, d {HIDDEN}, {LAYERS} layers: mean and range of seeds ({seeds})"
        save(loss_curves(title, records, {name: task.title for name, task in TASKS.items()}), given.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
