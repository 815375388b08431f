"""Character language models of WikiText-2: recurrence, spans, partitions, clusters, windows, all that is before.

    python benchmarks/wikitext_characters.py [--quick] [--compute] [--seed N] [--json results/wikitext_characters.jsonl]

At equal steps; with `--compute` each model takes as many steps as those of `full` pay for in FLOPs.

Every model: 3 layers of d 128, segments of 256 characters, 2,048 characters a step, the same text in the same order,
so that what differs is what a segment sees: itself (full, sliding_window of 64 back, bp with 4 nodes a level) or what
was before it too (transformer_xl, adaptive_span: 256 positions a layer; compressive: 128 and 32 for four each).
An LSTM of as many parameters stands beside them, which reads the 256 characters before a segment first.
transformer_xl without memory tells what its relative positions give, and once more what shuffled segments give, which
a memory forbids. Scores are bits a character of the test text, the second and later ones of each segment. Models that
remember are also scored with other lengths of memory than they were trained with: the relative effective context is
the memory beyond which twice as much gains less than 0.5 %.
With --json a run that is in the file is not repeated.
"""

import math
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

from _harness import KNOWN, REFERENCE, SEED, Benchmark, Option, Run, data, fitted
from _lstm import lstm
from rich.table import Table
from transformers import PreTrainedModel, set_seed

from greenformers.data import Text, train_tokenizer
from greenformers.data import load as load_data
from greenformers.measure.flops import flops
from greenformers.measure.record import Record
from greenformers.model.memory import SegmentMemory
from greenformers.train.causal_lm import CausalLM
from greenformers.train.fit import Schedule
from greenformers.train.text import mean_loss

LENGTH, BATCH, STEPS = 256, 8, 700
SIZES = {"hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 512, "num_hidden_layers": 3}
MODELS: dict[str, dict[str, Any]] = {
    "full": {},
    "transformer_xl": {"memory": 256},
    "compressive": {"memory": 128, "options": {"compressed": 32}},
    "transformer_xl without memory": {"attention": "transformer_xl"},
    "transformer_xl without memory, shuffled": {"attention": "transformer_xl", "shuffled": True},
    "sliding_window": {"options": {"window": 64}},
    "adaptive_span": {"memory": 256},
    "adaptive_span, dynamic": {"attention": "adaptive_span", "memory": 256, "options": {"dynamic": True}},
    "adaptive_span without memory": {"attention": "adaptive_span"},
    "adaptive_span without memory, by spans alone": {
        "attention": "adaptive_span",
        "options": {"position_term": False, "include_self": True},
    },
    "bp": {"block": "bp"},
    "routing": {},
    "lstm": {"memory": 256, "lstm": {"d": 128, "cells": 256, "layers": 2}},
    "lstm without memory": {"lstm": {"d": 128, "cells": 256, "layers": 2}},
}
MEMORIES = (0, 16, 32, 64, 128, 256, 512, 1024)
GAIN = 0.005
CHARACTERS = {"train": 6_000_000, "valid": 10_000, "test": 120_000}
QUICK = {"train": 60_000, "valid": 5_000, "test": 6_000}

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any training; the figures mean nothing",
    options=(
        data("--data", ".", "folder of the data sets' folders", "wikitext2"),
        Option("--references", "published tables", Path, REFERENCE),
        SEED,
        Option("--only", "one model", choices=MODELS),
        Option("--compute", "as many FLOPs for each, in place of as many steps", bool, default=False),
    ),
    json=KNOWN,
)


def main(run: Run) -> None:
    steps, characters = (4, QUICK) if run.quick else (STEPS, CHARACTERS)
    equal = "compute" if run.given.compute else "steps"
    names = MODELS if run.given.only is None else (run.given.only,)
    records = run.trainings(
        [(name, seed) for seed in run.seeds for name in names],
        lambda training: (training[0], {"seed": training[1], f"equal_{equal}": steps}),
        lambda training: trained(run, *training, steps, characters),
        lambda own: f"{own[0].value:.3f} bits a character, {own[1].value:.0f} s",
    )
    run.show(*shown(records, {f"equal_{equal}": steps}))
    run.published("slides_transformer_xl_enwik8", "slides_bpt_enwik8_text8", "slides_longformer_text8_enwik8")


def objective(data: Path, characters: dict[str, int], memory: int) -> CausalLM:
    text = load_data("wikitext2", data / "wikitext2")
    assert isinstance(text, Text)
    cut = Text("wikitext2", *(text.split(split)[:count] for split, count in characters.items()))
    return CausalLM(cut, train_tokenizer("characters", cut.train, max_length=LENGTH), LENGTH, memory=memory)


def trained(run: Run, name: str, seed: int, steps: int, characters: dict[str, int]) -> list[Record]:
    """Train a model and score it."""
    given = MODELS[name]
    memory = given.get("memory", 0)
    task = objective(run.given.data, characters, memory)
    task.in_order = not given.get("shuffled", False)
    set_seed(seed)
    model, each = built(name, task), compute(name, task)
    equal = {"equal_compute" if run.given.compute else "equal_steps": steps}
    if run.given.compute:
        steps = max(1, round(steps * compute("full", task) / each))
    schedule = Schedule(
        steps=steps, batch_size=BATCH, learning_rate=2e-3, seed=seed, log_every=steps, evaluate_every=steps,
        save_every=steps,
    )  # fmt: skip
    history = fitted(model, task, schedule, name)
    setting = {
        "length": LENGTH, "batch": BATCH, "steps": steps, "seed": seed, "memory": memory,
        "characters": characters["train"], **equal,
    }  # fmt: skip
    parameters = sum(parameter.numel() for parameter in model.parameters())
    figures = [
        ("bits_per_character", mean_loss(model, task, "test", BATCH) / math.log(2), setting),
        ("train_time", history.seconds, setting),
        ("parameters", parameters, setting),
        ("flops_training", steps * each / 1e9, setting),
    ]
    for length in MEMORIES if memory else ():
        bits = mean_loss(model, task, "test", BATCH, length) / math.log(2)
        figures.append(("bits_per_character", bits, {**setting, "evaluated_with": length}))
    return [run.record(metric, value, name, where, seed=seed) for metric, value, where in figures]


def built(name: str, task: CausalLM) -> PreTrainedModel:
    """The network of a model."""
    given = MODELS[name]
    if "lstm" in given:
        return lstm(len(task.tokenizer), given["lstm"])
    slots = {"block": "bp"} if name == "bp" else {"attention": given.get("attention", name), "residual": "pre"}
    options = {"block_options" if name == "bp" else "attention_options": given.get("options")}
    sizes = {**SIZES, **slots, **options, "position": "sinusoidal", "hidden_dropout_prob": 0.0}
    return task.build(task.config(**sizes, initializer_range=SIZES["hidden_size"] ** -0.5))


def compute(name: str, task: CausalLM) -> float:
    """FLOPs of a training step: three times those of the forward pass, on a memory that is full."""
    ids = task.blocks("train")[:1].long()
    memory = MODELS[name].get("memory", 0)
    if "lstm" in MODELS[name]:  # whose operator torch does not count; what is remembered has no backward pass
        each = 2 * sum(weight.numel() for weight in built(name, task).parameters() if weight.dim() == 2)
        return BATCH * each * (3 * LENGTH + memory)
    model = built(name, task).eval()
    before = {}
    if memory:
        held = SegmentMemory(memory)
        for _ in range(-(-memory // LENGTH) + 1):
            held = model(ids, memory=held).memory
        before = {"memory": held}
    return 3 * BATCH * flops(lambda: model(ids, **before))


def scores(records: list[Record], equal: dict[str, int]) -> dict[str, list[float]]:
    """Bits a character of each model, of all seeds, at equal steps or equal compute."""
    found: dict[str, list[float]] = {}
    for record in records:
        own = record.metric == "bits_per_character" and "evaluated_with" not in record.setting
        if own and record.setting.items() >= equal.items():
            found.setdefault(record.variant, []).append(record.value)
    return found


def shown(records: list[Record], equal: dict[str, int]) -> tuple[Table, Table]:
    """Scores of all models, and of those that remember with other lengths of memory."""
    ((way, steps),) = equal.items()
    title = f"after {steps} steps" if way == "equal_steps" else f"as many FLOPs as {steps} steps of full"
    table = Table(
        "model", "bits a character, by seed", "mean", "to full", "s of training", "TFLOP of training", title=title
    )
    found = scores(records, equal)
    base = mean(found["full"]) if "full" in found else None
    for name, values in sorted(found.items(), key=lambda entry: mean(entry[1])):
        own = [r for r in records if r.variant == name and r.setting.items() >= equal.items()]
        times, work = ([r.value for r in own if r.metric == metric] for metric in ("train_time", "flops_training"))
        table.add_row(
            name,
            ", ".join(f"{value:.3f}" for value in values),
            f"{mean(values):.3f}",
            "" if base is None else f"{mean(values) - base:+.3f}",
            f"{mean(times):.0f}",
            f"{mean(work) / 1e3:.0f}" if work else "",
        )
    longer = Table(
        "model", *map(str, MEMORIES), "effective", title="bits a character by length of memory in evaluation"
    )
    for name in [name for name in found if MODELS[name].get("memory")]:
        row = []
        for length in MEMORIES:
            values = [
                r.value for r in records
                if r.variant == name and r.setting.items() >= {**equal, "evaluated_with": length}.items()
            ]  # fmt: skip
            row.append(mean(values))
        longer.add_row(name, *(f"{value:.3f}" for value in row), str(effective(row)))
    return table, longer


def effective(bits: list[float]) -> int:
    """The shortest memory beyond which the next one gains less than the limit."""
    gains = [(one - other) / one for one, other in pairwise(bits)]
    return next((length for length, gain in zip(MEMORIES, gains, strict=False) if gain < GAIN), MEMORIES[-1])


if __name__ == "__main__":
    BENCHMARK.run(main)
