"""Character language models of WikiText-2 at equal steps: recurrence, spans, partitions, windows, all that is before.

    python benchmarks/wikitext_characters.py [--quick] [--seed N] [--json results/wikitext_characters.jsonl]

Every model: 3 layers of d 128, segments of 256 characters, 2,048 characters a step, the same text in the same order,
so that what differs is what a segment sees: itself (full, sliding_window of 64 back, adaptive_span, bp with 4 nodes a
level) or what was before it too (transformer_xl: 256 positions a layer; compressive: 128 and 32 for four each).
transformer_xl without memory tells what its relative positions give, and once more what shuffled segments give, which
a memory forbids. Scores are bits a character of the test text, the second and later ones of each segment. Models that
remember are also scored with other lengths of memory than they were trained with: the relative effective context is
the memory beyond which twice as much gains less than 0.5 %.
With --json a run that is in the file is not repeated.
"""

import argparse
import math
import sys
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table
from transformers import logging, set_seed

from greenformers.data import Text, train_tokenizer
from greenformers.data import load as load_data
from greenformers.measure.record import Record, append, context, read
from greenformers.train.causal_lm import CausalLM
from greenformers.train.fit import Schedule, fit
from greenformers.train.text import mean_loss

BENCHMARK = "wikitext_characters"
LENGTH, BATCH, STEPS = 256, 8, 700
SIZES = {"hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 512, "num_hidden_layers": 3}
MODELS: dict[str, dict[str, Any]] = {
    "full": {},
    "transformer_xl": {"memory": 256},
    "compressive": {"memory": 128, "options": {"compressed": 32}},
    "transformer_xl without memory": {"attention": "transformer_xl"},
    "transformer_xl without memory, shuffled": {"attention": "transformer_xl", "shuffled": True},
    "sliding_window": {"options": {"window": 64}},
    "adaptive_span": {},
    "bp": {"block": "bp"},
}
MEMORIES = (0, 16, 32, 64, 128, 256, 512, 1024)
GAIN = 0.005
CHARACTERS = {"train": 6_000_000, "valid": 10_000, "test": 120_000}
QUICK = {"train": 60_000, "valid": 5_000, "test": 6_000}


def objective(data: Path, characters: dict[str, int], memory: int) -> CausalLM:
    text = load_data("wikitext2", data / "wikitext2")
    assert isinstance(text, Text)
    cut = Text("wikitext2", *(text.split(split)[:count] for split, count in characters.items()))
    return CausalLM(cut, train_tokenizer("characters", cut.train, max_length=LENGTH), LENGTH, memory=memory)


def trained(name: str, seed: int, steps: int, data: Path, characters: dict[str, int], command: str) -> list[Record]:
    """Train a model and score it.

    Raises:
        KeyboardInterrupt: a signal ended it early.
    """
    given = MODELS[name]
    memory = given.get("memory", 0)
    task = objective(data, characters, memory)
    task.in_order = not given.get("shuffled", False)
    set_seed(seed)
    slots = {"block": "bp"} if name == "bp" else {"attention": given.get("attention", name), "residual": "pre"}
    options = {"block_options" if name == "bp" else "attention_options": given.get("options")}
    sizes = {**SIZES, **slots, **options, "position": "sinusoidal", "hidden_dropout_prob": 0.0}
    model = task.build(task.config(**sizes, initializer_range=SIZES["hidden_size"] ** -0.5))
    schedule = Schedule(
        steps=steps, batch_size=BATCH, learning_rate=2e-3, seed=seed, log_every=steps, evaluate_every=steps,
        save_every=steps,
    )  # fmt: skip
    history = fit(model, task, schedule, label=name, console=Console(quiet=True))
    if history.stopped is not None:
        raise KeyboardInterrupt
    about, records = context(command, seed), []
    setting = {
        "length": LENGTH, "batch": BATCH, "steps": steps, "seed": seed, "memory": memory,
        "characters": characters["train"],
    }  # fmt: skip
    parameters = sum(parameter.numel() for parameter in model.parameters())
    found = [("bits_per_character", setting, mean_loss(model, task, "test", BATCH) / math.log(2), "bits")]
    found.append(("train_time", setting, history.seconds, "s"))
    found.append(("parameters", setting, float(parameters), ""))
    for length in MEMORIES if memory else ():
        bits = mean_loss(model, task, "test", BATCH, length) / math.log(2)
        found.append(("bits_per_character", {**setting, "evaluated_with": length}, bits, "bits"))
    for metric, where, value, unit in found:
        records.append(Record(BENCHMARK, name, where, metric, value, unit, context=about))
    return records


def scores(records: list[Record], steps: int) -> dict[str, list[float]]:
    """Bits a character of each model, of all seeds."""
    found: dict[str, list[float]] = {}
    for record in records:
        own = record.metric == "bits_per_character" and "evaluated_with" not in record.setting
        if own and record.setting["steps"] == steps:
            found.setdefault(record.variant, []).append(record.value)
    return found


def show(console: Console, records: list[Record], steps: int) -> None:
    table = Table(
        "model", "bits a character, by seed", "mean", "to full", "s of training", title=f"after {steps} steps"
    )
    found = scores(records, steps)
    base = mean(found["full"]) if "full" in found else None
    for name, values in sorted(found.items(), key=lambda entry: mean(entry[1])):
        times = [r.value for r in records if (r.variant, r.metric, r.setting["steps"]) == (name, "train_time", steps)]
        table.add_row(
            name,
            ", ".join(f"{value:.3f}" for value in values),
            f"{mean(values):.3f}",
            "" if base is None else f"{mean(values) - base:+.3f}",
            f"{mean(times):.0f}",
        )
    console.print(table)
    longer = Table(
        "model", *map(str, MEMORIES), "effective", title="bits a character by length of memory in evaluation"
    )
    for name in [name for name in found if MODELS[name].get("memory")]:
        row = []
        for length in MEMORIES:
            values = [
                r.value for r in records
                if r.variant == name and r.setting.get("evaluated_with") == length and r.setting["steps"] == steps
            ]  # fmt: skip
            row.append(mean(values))
        longer.add_row(name, *(f"{value:.3f}" for value in row), str(effective(row)))
    console.print(longer)


def effective(bits: list[float]) -> int:
    """The shortest memory beyond which the next one gains less than the limit."""
    gains = [(one - other) / one for one, other in pairwise(bits)]
    return next((length for length, gain in zip(MEMORIES, gains, strict=False) if gain < GAIN), MEMORIES[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the data sets' folders")
    parser.add_argument("--references", type=Path, default=Path("../shared/reference"), help="published tables")
    parser.add_argument("--seed", type=int, help="one seed; by default 0 and 1")
    parser.add_argument("--only", choices=MODELS, help="one model")
    parser.add_argument("--quick", action="store_true", help="hardly any training; the figures mean nothing")
    parser.add_argument("--json", type=Path, help="file the records are added to, and known runs are read from")
    given = parser.parse_args()
    if not (given.data / "wikitext2").is_dir():
        parser.exit(message=f"skipped: wikitext2 is not in {given.data}; name the folder with --data\n")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    steps, characters = (4, QUICK) if given.quick else (STEPS, CHARACTERS)
    records = read(given.json) if given.json and given.json.exists() else []
    console = Console(width=140)
    for seed in (0, 1) if given.seed is None else (given.seed,):
        for name in MODELS if given.only is None else (given.only,):
            at = (name, seed, steps)
            if any((r.variant, r.setting["seed"], r.setting["steps"]) == at for r in records):
                continue
            command = "python benchmarks/wikitext_characters.py" + " --quick" * given.quick
            try:
                found = trained(name, seed, steps, given.data, characters, command)
            except KeyboardInterrupt:
                print("stopped; the same command goes on")
                return 1
            records += found
            if given.json:
                append(given.json, found)
            print(f"{name}, seed {seed}: {found[0].value:.3f} bits a character, {found[1].value:.0f} s", flush=True)
    show(console, records, steps)
    for name in ("slides_transformer_xl_enwik8", "slides_bpt_enwik8_text8", "slides_longformer_text8_enwik8"):
        if (given.references / f"{name}.csv").is_file():
            console.print(f"published: {name}", (given.references / f"{name}.csv").read_text(), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
