"""Every mechanism as a small language model of bytes, at equal steps, batches and sizes, by its loss.

    python benchmarks/language_models.py [--quick] [--json results/language_models.jsonl] [--picture FILE]

Causal on Tiny Shakespeare for each mechanism that has a causal form, in a network as it is by default (rotary
positions where the mechanism takes them, else learned ones or its own); masked on WikiText-2 for all. Several seeds,
each with its own weights and batches, the same for every mechanism. With --json a run that is in the file is not
repeated, so that the same command goes on where it was stopped.
"""

import math
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from _harness import KNOWN, Benchmark, Option, Run, data, fitted
from rich.table import Table
from transformers import set_seed

from greenformers.attention import Shape, build, names
from greenformers.data import Text, train_tokenizer
from greenformers.data import load as load_data
from greenformers.measure.narrower import controlled
from greenformers.measure.record import Record
from greenformers.report.curves import save
from greenformers.report.loss_curves import loss_curves, losses
from greenformers.train.causal_lm import CausalLM
from greenformers.train.masked_lm import MaskedLM
from greenformers.train.schedule import Schedule
from greenformers.train.text import LanguageModelling

BASELINE = "full"
HIDDEN, HEADS, LAYERS, FEED_FORWARD = 64, 4, 2, 256
STEPS, TOKENS, RATE = 2000, 1024, 5e-3  # tokens of a step
# Masked language models begin with about BERT's 0.02 at their width; else what is there by default.
NETWORKS: dict[str, dict[str, Any]] = {
    "causal_lm": {},
    "masked_lm": {"initializer_range": 0.08, "residual": "pre", "position": "sinusoidal"},
}
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
    "sinkhorn (products)": ("sinkhorn", {"sort": "products"}),
    "adaptive_span (rotary)": ("adaptive_span", {"position_term": False, "include_self": True}),
    "full + synthesizer_random": ("synthesizer_random", {"mixed": True}),
    "full + synthesizer_dense": ("synthesizer_dense", {"mixed": True}),
}
# Dense attention between linear layers of these shares of the width as ranks, and narrower networks as small.
SHARES = (0.25, 0.5)
LOW_RANK = {f"{kind} {share}": round(share * HIDDEN) for kind in ("lrt", "narrow") for share in SHARES}

FAMILIES: dict[str, tuple[str, ...]] = {
    "Synthesizers": (
        "synthesizer_random", "synthesizer_dense", "synthesizer_factorized_random", "synthesizer_factorized_dense",
        "synthesizer_random (fixed)",
    ),
    "Kernels, and mixtures": (
        "performer", "performer (redrawn)", "linear_transformer", "full + synthesizer_random",
        "full + synthesizer_dense",
    ),
    "Patterns": ("sliding_window", "cascade", "local_blocks", "sparse_strided", "sparse_fixed"),
    "Recurrence, and what is learnt": (
        "transformer_xl", "compressive", "adaptive_span", "dacs", "sinkhorn", "reformer", "routing",
    ),
    "Low rank, and dense networks as small": (*LOW_RANK, "linformer", "nystromformer"),
    "Patterns without a causal form": ("longformer", "bigbird", "etc", "blockwise"),
}  # fmt: skip
"""Panels of the picture, each with dense attention beside it: seven lines at most."""

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any training; the figures mean nothing",
    options=(
        data("--data", ".", "folder of both data sets' folders", *(task.data for task in TASKS.values())),
        Option("--steps", f"of each training; {STEPS} if not given", int),
        Option("--seeds", "trainings of each; 2 if not given", int),
        Option("--task", "one of the two; both if not given", choices=TASKS),
        Option("--only", "one mechanism or variant, as the table names it"),
        Option("--picture", "PNG of the loss curves", Path),
    ),
    json=KNOWN,
)


def main(run: Run) -> None:
    given = run.given
    characters = QUICK if run.quick else CHARACTERS
    steps, seeds = given.steps or (4 if run.quick else STEPS), given.seeds or (1 if run.quick else 2)
    every = trainings(steps, seeds, characters["train"])
    every = [training for training in every if given.task in (None, training.task)]
    plan = [training for training in every if given.only in (None, training.variant)]
    if not plan:
        run.refuse(f"--only must be one of {', '.join(dict.fromkeys(training.variant for training in every))}")
    tasks = [task for task in TASKS if given.task in (None, task)]
    objectives = {task: objective(task, given.data, characters) for task in tasks}
    records = run.trainings(
        plan,
        lambda training: (training.variant, training.setting(steps)),
        lambda training: trained(run, training, objectives[training.task]),
        lambda own: f"loss {own[-2].value:.4f}, {1000 * own[-1].value / steps:.0f} ms a step",
    )
    records = of_trainings(records, every)
    run.show(*(shown(task, records, steps) for task in tasks))
    if given.picture:
        title = f"Language models of bytes, d {HIDDEN}, {LAYERS} layers: mean and range of seeds ({seeds})"
        save(loss_curves(title, records, {task: TASKS[task].title for task in tasks}, FAMILIES), given.picture)


class Training(NamedTuple):
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
            "heads": HEADS, "feed_forward": FEED_FORWARD, "learning_rate": RATE, "network": NETWORKS[self.task],
            "options": self.options, "characters": self.characters, "steps": self.steps, "seed": self.seed,
            "step": step,
        }  # fmt: skip


def trainings(steps: int, seeds: int, characters: int) -> list[Training]:
    """All of them, a seed after the other: stopped in between, some seeds are complete."""
    single = {name: (name, OPTIONS.get(name, {})) for name in sorted(names(), key=lambda name: name != BASELINE)}
    low: dict[str, tuple[str, dict[str, Any]]] = {name: (BASELINE, {"rank": rank}) for name, rank in LOW_RANK.items()}
    return [
        Training(task, variant, mechanism, options, seed, steps, characters)
        for seed in range(seeds)
        for task in TASKS
        for variant, (mechanism, options) in (single | VARIANTS | low).items()
        if task != "causal_lm" or has_causal_form(mechanism, options)
    ]


def has_causal_form(mechanism: str, options: dict[str, Any]) -> bool:
    length = TASKS["causal_lm"].length
    options = {name: value for name, value in options.items() if mechanism != BASELINE or name != "rank"}
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


def trained(run: Run, own: Training, task: LanguageModelling) -> list[Record]:
    """Train, with the validation loss at about ten steps. The seed is that of the weights and of the batches."""
    options, rank = dict(own.options), None
    if own.variant in LOW_RANK:
        rank = options.pop("rank")
    config = task.config(
        hidden_size=HIDDEN, num_attention_heads=HEADS, intermediate_size=FEED_FORWARD, num_hidden_layers=LAYERS,
        hidden_dropout_prob=0.0, attention=own.mechanism, attention_options=options, rank=rank, **NETWORKS[own.task],
    )  # fmt: skip
    ids = torch.zeros(1, task.length, dtype=torch.long)
    config = controlled(own.variant.split()[0], config, task.build, lambda model, _: model(input_ids=ids))
    set_seed(own.seed)
    model = task.build(config)
    schedule = Schedule(
        steps=own.steps, batch_size=TOKENS // task.length, learning_rate=RATE, seed=own.seed, log_every=own.steps,
        evaluate_every=max(1, own.steps // EVALUATIONS), save_every=own.steps,
    )  # fmt: skip
    history = fitted(model, task, schedule, own.variant)
    figures = [(step, "loss", value) for step, value in history.curve("eval_loss")]
    figures.append((own.steps, "train_time", history.seconds))
    return [run.record(metric, value, own.variant, own.setting(step), seed=own.seed) for step, metric, value in figures]


def of_trainings(records: list[Record], plan: list[Training]) -> list[Record]:
    """The records of these trainings: a file may hold others, of other sizes."""
    settings = [(training.variant, training.setting(0)) for training in plan]
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


if __name__ == "__main__":
    BENCHMARK.run(main)
