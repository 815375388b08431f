"""Language models of WikiText-2, by characters or subwords: recurrence, spans, partitions, clusters, windows, an LSTM.

    python benchmarks/wikitext_characters.py [--quick] [--compute] [--seed N] [--json results/wikitext_characters.jsonl]
    python benchmarks/wikitext_characters.py --tokenizer bpe [--compute] [--json results/wikitext_characters.jsonl]

At equal steps; with `--compute` each model takes as many steps as those of `full` pay for in FLOPs.

Every model: 3 layers of d 128, segments of 256 tokens, 2,048 tokens a step, the same text in the same order, so that
what differs is what a segment sees: itself (full, sliding_window of 64 back, bp with 4 nodes a level) or what was
before it too (transformer_xl, adaptive_span: 256 positions a layer; compressive: 128 and 32 for four each). A token is
a character, or one of 2,000 subwords. An LSTM of as many parameters stands beside them, which reads the 256 tokens
before a segment first. transformer_xl without memory tells what its relative positions give, and once more what
shuffled segments give, which a memory forbids. Scores are bits a character of the test text, of the second and later
tokens of each segment; bits a subword are divided by the characters that a subword of the test text has on average.

Models that remember are also scored with other lengths of memory than they were trained with; "effective" is the memory
beyond which twice as much gains less than 0.5 %. That is a figure of one model, and counts the memory alone: tokens see
up to 255 of their own segment besides. The relative effective context length (Dai 2019, arXiv:1901.02860, appendix C)
is of a group of models and of all that a token sees: 8,192 tokens of the test text are scored after contexts of 64,
128, ... 512 tokens, read from an empty memory on (32 in a row, so that the last sees 31 more). It is the first context
of which 64 tokens more lower a model's perplexity by less than 1 %, where of each token the loss counts that is less,
the model's own or the least of the group after the shorter context; of all tokens, or of the share of them that the
group tells worst. Those losses are kept in the folder of --runs, and the group are all models whose losses are there.
What has no memory sees the 256 tokens of a segment at most.
With --json a run that is in the file is not repeated: a model whose losses are not there has no such length then.
"""

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F
from _harness import KNOWN, REFERENCE, RUNS, SEED, Benchmark, Option, Run, data, fitted
from _lstm import lstm
from rich.table import Table
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, set_seed

from greenformers.data import Text, train_tokenizer
from greenformers.data import load as load_data
from greenformers.measure.flops import flops
from greenformers.measure.quality import evaluating
from greenformers.measure.record import Record
from greenformers.model.memory import SegmentMemory
from greenformers.train.causal_lm import CausalLM
from greenformers.train.schedule import Schedule
from greenformers.train.text import encoded, mean_loss

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
VOCABULARY = 2000
"""Of subwords."""
MEMORIES = (0, 16, 32, 64, 128, 256, 512, 1024)
GAIN = 0.005
CONTEXTS, SCORED, WINDOWS = tuple(range(64, 513, 64)), 32, 256
HARD, LEAST_GAIN = (0.1, 0.5, 1.0), 0.01
"""Shares of the tokens, those told worst, that Dai's table 8 is for; and the gain below which a context is enough."""
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
        Option("--tokenizer", "of the text", default="characters", choices=("characters", "bpe")),
        Option("--runs", "folder of the losses by context", Path, RUNS / "wikitext_characters"),
    ),
    json=KNOWN,
)


def main(run: Run) -> None:
    steps, characters = (4, QUICK) if run.quick else (STEPS, CHARACTERS)
    at = place(run, steps, characters)
    names = MODELS if run.given.only is None else (run.given.only,)
    records = run.trainings(
        [(name, seed) for seed in run.seeds for name in names],
        # Relative contexts, which tell of no training's end, have no length.
        lambda training: (training[0], {"length": LENGTH, "seed": training[1], **at}),
        lambda training: trained(run, *training, steps, characters),
        lambda own: f"{own[0].value:.3f} bits a character, {own[1].value:.0f} s",
    )
    run.show(*shown(records, at))
    relative = relative_records(run, at)
    run.write(new for new in relative if not any(is_same(new, old) for old in records))
    if relative:
        run.show(relative_table(relative))
    if missing := without_losses(run, names, at):
        print(
            f"no losses by context are there for {', '.join(missing)}, and so no relative context: they come with a "
            "training, by a new file for --json"
        )
    run.published("slides_transformer_xl_enwik8", "slides_bpt_enwik8_text8", "slides_longformer_text8_enwik8")


def place(run: Run, steps: int, characters: dict[str, int]) -> dict[str, int]:
    """What of a setting tells the models that are compared from others."""
    equal = {"equal_compute" if run.given.compute else "equal_steps": steps}
    count = characters["train"]
    return equal | (
        {"characters": count} if run.given.tokenizer == "characters" else {"subwords": VOCABULARY, "text": count}
    )


def objective(run: Run, characters: dict[str, int], memory: int) -> CausalLM:
    text = load_data("wikitext2", run.given.data / "wikitext2")
    assert isinstance(text, Text)
    cut = Text("wikitext2", *(text.split(split)[:count] for split, count in characters.items()))
    kind = run.given.tokenizer
    size = VOCABULARY if kind == "bpe" else None
    return CausalLM(cut, train_tokenizer(kind, cut.train, max_length=LENGTH, vocab_size=size), LENGTH, memory=memory)


def trained(run: Run, name: str, seed: int, steps: int, characters: dict[str, int]) -> list[Record]:
    """Train a model and score it."""
    given = MODELS[name]
    memory = given.get("memory", 0)
    task = objective(run, characters, memory)
    task.in_order = not given.get("shuffled", False)
    set_seed(seed)
    model, each = built(name, task), compute(name, task)
    at = place(run, steps, characters)
    if run.given.compute:
        steps = max(1, round(steps * compute("full", task) / each))
    schedule = Schedule(
        steps=steps, batch_size=BATCH, learning_rate=2e-3, seed=seed, log_every=steps, evaluate_every=steps,
        save_every=steps,
    )  # fmt: skip
    history = fitted(model, task, schedule, name)
    setting = {"length": LENGTH, "batch": BATCH, "steps": steps, "seed": seed, "memory": memory, **at}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    figures = [
        ("bits_per_character", bits(model, task), setting),
        ("train_time", history.seconds, setting),
        ("parameters", parameters, setting),
        ("flops_training", steps * each / 1e9, setting),
    ]
    figures += [
        ("bits_per_character", bits(model, task, length), {**setting, "evaluated_with": length})
        for length in (MEMORIES if memory else ())
    ]
    path = losses_file(run, name, seed, at)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({"losses": context_losses(model, task, 4 if run.quick else WINDOWS, memory > 0)}, path)
    return [run.record(metric, value, name, where, seed=seed) for metric, value, where in figures]


def bits(model: PreTrainedModel, task: CausalLM, memory: int | None = None) -> float:
    """Bits a character of the test text; those of a subword by the characters that it has there on average."""
    text = task.data.split("test")
    each = len(text) / len(encoded(task.tokenizer, text))
    return mean_loss(model, task, "test", BATCH, memory) / math.log(2) / each


def losses_file(run: Run, name: str, seed: int, at: Mapping[str, int]) -> Path:
    """Where the losses by context of a model are kept."""
    words = [run.given.tokenizer, *(f"{key}{value}" for key, value in at.items()), f"seed{seed}"]
    folder: Path = run.given.runs / "-".join(words)
    return folder / f"{name.replace(',', '').replace(' ', '_')}.safetensors"


def context_losses(model: PreTrainedModel, task: CausalLM, windows: int, remembers: bool) -> Tensor:
    """Loss in nats of scored tokens of the test text, after each length of context (contexts, tokens).

    Of the tokens in a row the first is told by as many before it as the context has, the others by those between, too.
    """
    ids = encoded(task.tokenizer, task.data.split("test")).long().to(model.device)
    longest = max(CONTEXTS)
    starts = torch.linspace(longest, len(ids) - SCORED, windows).long().tolist()
    rows = torch.stack([ids[start - longest : start + SCORED] for start in starts])
    targets = rows[:, longest:]
    losses = []
    with evaluating(model), torch.no_grad():
        for length in CONTEXTS:
            before = rows[:, longest - length : -1]
            logits = torch.cat([last_scores(model, part, remembers) for part in before.split(32)])
            losses.append(F.cross_entropy(logits.transpose(1, 2), targets, reduction="none").flatten().cpu())
    return torch.stack(losses)


def last_scores(model: PreTrainedModel, ids: Tensor, remembers: bool) -> Tensor:
    """Scores (B, SCORED, vocabulary) of the tokens after the last positions of these (B, N)."""
    if not remembers:
        alone: Tensor = model(ids[:, -LENGTH:]).logits
        return alone[:, -SCORED:]
    memory = SegmentMemory(ids.shape[1])  # all of them
    for segment in ids[:, :-SCORED].split(LENGTH, 1):
        memory = model(segment, memory=memory).memory
    scores: Tensor = model(ids[:, -SCORED:], memory=memory).logits
    return scores


def relative_contexts(group: Mapping[str, Tensor], share: float) -> dict[str, int]:
    """The relative effective context length of each model, by the losses of all of them (contexts, tokens).

    Args:
        group: Losses in nats, by model.
        share: Share of the tokens that count, those whose least loss in the group is greatest.
    """
    lengths = dict.fromkeys(group, CONTEXTS[-1])
    for name, losses in group.items():
        for index, context in enumerate(CONTEXTS[:-1]):
            least = torch.stack([own[index] for own in group.values()]).amin(0)
            hard = least.topk(max(1, round(share * len(least)))).indices
            short, long = least[hard].mean(), torch.minimum(least, losses[index + 1])[hard].mean()
            if 1 - math.exp(float(long - short)) < LEAST_GAIN:  # of the perplexity
                lengths[name] = context
                break
    return lengths


def relative_records(run: Run, at: Mapping[str, int]) -> list[Record]:
    """The relative effective contexts of all models whose losses are kept, by seed."""
    records = []
    for seed in run.seeds:
        paths = {name: losses_file(run, name, seed, at) for name in MODELS}
        group = {name: load_file(path)["losses"] for name, path in paths.items() if path.is_file()}
        for share in HARD if group else ():
            for name, length in relative_contexts(group, share).items():
                setting = {**at, "seed": seed, "hard": share, "group": len(group)}
                records.append(run.record("effective_context", length, name, setting, seed=seed))
    return records


def without_losses(run: Run, names: Iterable[str], at: Mapping[str, int]) -> list[str]:
    """The models of which the losses of a seed are not there."""
    return [name for name in names if not all(losses_file(run, name, seed, at).is_file() for seed in run.seeds)]


def is_same(record: Record, other: Record) -> bool:
    """Whether two records are of one figure."""
    return (record.metric, record.variant, record.setting) == (other.metric, other.variant, other.setting)


def relative_table(records: list[Record]) -> Table:
    """Relative effective contexts by seed, of the longest context at least."""
    sizes = " or ".join(str(size) for size in sorted({record.setting["group"] for record in records}))
    title = f"relative effective context in tokens, of {sizes} models; {CONTEXTS[-1]} is the longest tried"
    table = Table("model", *(f"r {share}" for share in HARD), title=title)
    for name in dict.fromkeys(record.variant for record in records):
        row = [[r.value for r in records if (r.variant, r.setting["hard"]) == (name, share)] for share in HARD]
        table.add_row(name, *(", ".join(f"{value:.0f}" for value in values) for values in row))
    return table


def built(name: str, task: CausalLM) -> PreTrainedModel:
    """The network of a model."""
    given = MODELS[name]
    if "lstm" in given:
        return lstm(len(task.tokenizer), given["lstm"])
    slots = {"block": "bp"} if name == "bp" else {"attention": given.get("attention", name), "residual": "pre"}
    options = {"block_options" if name == "bp" else "attention_options": given.get("options")}
    sizes = {**SIZES, **slots, **options, "position": "sinusoidal", "hidden_dropout_prob": 0.0}
    sizes["memory_length"] = given.get("memory", 0)  # that of the task is of another model where FLOPs are compared
    return task.build(task.config(**sizes, initializer_range=SIZES["hidden_size"] ** -0.5))


def compute(name: str, task: CausalLM) -> float:
    """FLOPs of a training step: three times those of the forward pass, on a memory that is full."""
    ids = task.blocks("train")[:1].long()
    memory = MODELS[name].get("memory", 0)
    if "lstm" in MODELS[name]:  # whose operator torch does not count
        lstm = built(name, task)
        each = {part: 2 * sum(own.numel() for own in getattr(lstm, part).parameters() if own.dim() == 2)
                for part in ("lstm", "embed")}  # fmt: skip
        # What is remembered is neither scored nor has it a backward pass.
        return BATCH * (3 * LENGTH * (each["lstm"] + each["embed"]) + memory * each["lstm"])
    model = built(name, task).eval()
    before = {}
    if memory:
        held = SegmentMemory(memory)
        for _ in range(-(-memory // LENGTH) + 1):
            held = model(ids, memory=held).memory
        before = {"memory": held}
    return 3 * BATCH * flops(lambda: model(ids, **before))


def scores(records: list[Record], at: Mapping[str, int]) -> dict[str, list[float]]:
    """Bits a character of each model, of all seeds, at equal steps or equal compute."""
    by_model: dict[str, list[float]] = {}
    for record in records:
        own = record.metric == "bits_per_character" and "evaluated_with" not in record.setting
        if own and record.setting.items() >= at.items():
            by_model.setdefault(record.variant, []).append(record.value)
    return by_model


def shown(records: list[Record], at: Mapping[str, int]) -> tuple[Table, Table]:
    """Scores of all models, and of those that remember with other lengths of memory."""
    steps = at.get("equal_steps")
    title = f"as many FLOPs as {at['equal_compute']} steps of full" if steps is None else f"after {steps} steps"
    table = Table(
        "model", "bits a character, by seed", "mean", "to full", "s of training", "TFLOP of training", title=title
    )
    by_model = scores(records, at)
    base = mean(by_model["full"]) if "full" in by_model else None
    for name, values in sorted(by_model.items(), key=lambda entry: mean(entry[1])):
        own = [r for r in records if r.variant == name and r.setting.items() >= at.items()]
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
    for name in [name for name in by_model if MODELS[name].get("memory")]:
        row = []
        for length in MEMORIES:
            values = [
                r.value for r in records
                if r.variant == name and r.setting.items() >= {**at, "evaluated_with": length}.items()
            ]  # fmt: skip
            row.append(mean(values))
        longer.add_row(name, *(f"{value:.3f}" for value in row), str(effective(row)))
    return table, longer


def effective(bits: list[float]) -> int:
    """The shortest memory beyond which the next one gains less than the limit: of one model, and of memory alone."""
    gains = [(short - long) / short for short, long in pairwise(bits)]
    return next((length for length, gain in zip(MEMORIES, gains, strict=False) if gain < GAIN), MEMORIES[-1])


if __name__ == "__main__":
    BENCHMARK.run(main)
