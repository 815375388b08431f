"""Universal depth: whether halting is trapped, its loss beside stacked layers, and algorithms at lengths never seen.

    python benchmarks/universal.py [--quick] [--json results/universal.jsonl] [--part halting]

Halting: causal on Tiny Shakespeare, one layer for up to 8 steps, 20 seeds, and 3 with the first bias of public code (1,
which makes two steps). Layers of a position, the share of positions at one and at all 8, FLOPs measured on validation
text, and loss, beside stacked layers: one, of as many parameters, and as many layers as positions went through, of as
many FLOPs, 3 seeds each. All have the norm first: with the norm last, three stacked layers do not learn at this rate
either, and halting leaves for one step. Bar: in no seed are 90 % of positions at one step, or at all.

Algorithms: copying of digits, and addition of two numbers, the least digit first, as lines of a causal network with
loss on the answer; positions begin at random (Dehghani 2018, 4.3). Trained on 1 to 8 digits, tested on 1 to 8 and on 9
to 16: the share of digits and of whole answers that are right, of universal depth with and without halting and of 6
stacked layers, 3 seeds. With --json a training that is in the file is not repeated.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from _harness import KNOWN, Benchmark, Option, Run, data, fitted, yes
from rich.table import Table
from torch import Tensor
from transformers import set_seed

from greenformers.data import Text, train_tokenizer
from greenformers.data import load as load_data
from greenformers.measure.flops import flops
from greenformers.measure.parameters import parameters
from greenformers.measure.record import Record
from greenformers.model import GreenformerConfig, GreenformerForCausalLM
from greenformers.train.causal_lm import CausalLM
from greenformers.train.schedule import Schedule

DATA, LENGTH = "tinyshakespeare", 128
HIDDEN, HEADS, FEED_FORWARD, MOST = 64, 4, 256, 8
STEPS, TOKENS, RATE = 1000, 1024, 3e-3
SEEDS, FEW = 20, 3
CHARACTERS = {"train": 1_000_000, "valid": 20_000}
QUICK = {"train": 30_000, "valid": 2_000}
TRAPPED = 90.0
UNIVERSAL, PUBLIC, STACKED = "universal", "universal, first bias 1", "stacked"
SCORES = ("loss", "flops", "parameters", "layers", "at_one_layer", "at_all_layers")

DIGITS, SEPARATOR, PLUS, PAD = 10, 10, 11, 12
SEEN, LONGER, OFFSET = (1, 8), (9, 16), 40
TASKS = ("copying", "addition")
LAYERS, BATCH, ALGORITHM_STEPS, ALGORITHM_RATE = 6, 64, 4000, 1e-3
NETWORKS: dict[str, dict[str, Any]] = {
    UNIVERSAL: {"depth": "universal"},
    "universal, 6 steps": {"depth": "universal", "depth_options": {"halts": False}},
    STACKED: {"position": "sinusoidal"},
}
PARTS = ("halting", "algorithms")

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any training, two seeds; the figures mean nothing",
    threads=1,
    options=(
        data("--data", ".", "folder of the data set's folder", DATA),
        Option("--steps", f"of each training; {STEPS}, and {ALGORITHM_STEPS} of algorithms, if not given", int),
        Option("--seeds", f"of universal depth; {SEEDS}, and {FEW} of others, if not given", int),
        Option("--part", "one of the two; both if not given", choices=PARTS),
    ),
    json=KNOWN,
)


def main(run: Run) -> bool:
    parts = PARTS if run.given.part is None else (run.given.part,)
    met = halting(run) if "halting" in parts else True
    if "algorithms" in parts:
        algorithms(run)
    return met


class Training(NamedTuple):
    """One training of a language model, from a seed."""

    variant: str
    layers: int
    seed: int
    steps: int
    characters: int

    def sizes(self) -> dict[str, Any]:
        """What the configuration of its network has beside the sizes of all."""
        if self.variant == STACKED:
            return {"num_hidden_layers": self.layers, "position": "sinusoidal"}
        options = {"bias": 1.0} if self.variant == PUBLIC else None
        return {"num_hidden_layers": self.layers, "depth": "universal", "depth_options": options}

    def setting(self) -> dict[str, Any]:
        """What tells its records from others."""
        return {
            "length": LENGTH, "batch": TOKENS // LENGTH, "hidden": HIDDEN, "layers": self.layers, "heads": HEADS,
            "feed_forward": FEED_FORWARD, "learning_rate": RATE, "characters": self.characters, "steps": self.steps,
            "seed": self.seed,
        }  # fmt: skip


def halting(run: Run) -> bool:
    """Train language models, print what their positions went through, and say whether the bar is met.

    Of a quick run it always is.
    """
    given, characters = run.given, QUICK if run.quick else CHARACTERS
    steps = given.steps or (4 if run.quick else STEPS)
    many = given.seeds or (2 if run.quick else SEEDS)
    few, task = min(many, FEW), objective(given.data, characters)

    def trainings(variant: str, layers: int, seeds: int) -> dict[str, list[float]]:
        own = [Training(variant, layers, seed, steps, characters["train"]) for seed in range(seeds)]
        records = run.trainings(
            own,
            lambda training: (training.variant, training.setting()),
            lambda training: trained(run, training, task),
            said,
        )
        figures = {
            (record.setting["seed"], record.metric): record.value
            for record in records
            if record.variant == variant and any(record.setting == training.setting() for training in own)
        }
        return {name: [figures[seed, name] for seed in range(seeds)] for name in SCORES}

    rows = {(UNIVERSAL, MOST): trainings(UNIVERSAL, MOST, many), (PUBLIC, MOST): trainings(PUBLIC, MOST, few)}
    as_many = max(2, round(mean(rows[UNIVERSAL, MOST]["layers"])))
    rows |= {(STACKED, layers): trainings(STACKED, layers, few) for layers in (1, as_many)}
    table = Table("depth", "layers at most", "seeds", "parameters", "layers a position", "at one, %", "at all, %",
                  "MFLOP a token", "loss")  # fmt: skip
    table.title = f"Tiny Shakespeare after {steps} steps: mean, least and most over seeds"
    for (variant, layers), scores in rows.items():
        cells = [spread(scores[name]) for name in ("layers", "at_one_layer", "at_all_layers")]
        table.add_row(
            variant, str(layers), str(len(scores["loss"])), f"{scores['parameters'][0]:,.0f}", *cells,
            spread([1e3 * value for value in scores["flops"]]), spread(scores["loss"], 4),
        )  # fmt: skip
    run.show(table)
    ends = rows[UNIVERSAL, MOST]
    trapped = sum(max(pair) >= TRAPPED for pair in zip(ends["at_one_layer"], ends["at_all_layers"], strict=True))
    print(f"trapped at one step or at all {MOST}: {trapped} of {many} seeds; none: {yes(trapped == 0)}")
    return trapped == 0 or run.quick


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean, and least and most."""
    return f"{mean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def said(records: list[Record]) -> str:
    """What is printed of a training that has ended."""
    figures = {record.metric: record.value for record in records}
    return f"loss {figures['loss']:.4f}, {figures['layers']:.2f} layers a position"


def objective(folder: Path, characters: dict[str, int]) -> CausalLM:
    """The task on the first bytes of its data; one token is one byte."""
    text = load_data(DATA, folder / DATA)
    assert isinstance(text, Text)
    train, valid = (text.split(split)[:count] for split, count in characters.items())
    return CausalLM(Text(DATA, train, valid, ""), train_tokenizer("bytes", train, max_length=LENGTH), LENGTH)


def trained(run: Run, own: Training, task: CausalLM) -> list[Record]:
    """Train, and judge on validation text. The seed is that of the weights and of the batches."""
    sizes = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "intermediate_size": FEED_FORWARD, "residual": "pre"}
    set_seed(own.seed)
    model = task.build(task.config(**sizes | own.sizes()))
    schedule = Schedule(
        steps=own.steps, batch_size=TOKENS // LENGTH, learning_rate=RATE, seed=own.seed, log_every=own.steps,
        evaluate_every=own.steps, save_every=own.steps,
    )  # fmt: skip
    fitted(model, task, schedule, f"{own.variant} {own.seed}")
    model.eval()
    ids = task.blocks("valid").long()
    with torch.no_grad():
        steps = model.base_model(ids).steps
        steps = torch.full(ids.shape, own.layers) if steps is None else steps
        work = flops(lambda: model(ids)) / ids.numel() / 1e9
    figures = {
        "loss": task.evaluate(model, "valid", TOKENS // LENGTH)["loss"],
        "flops": work,
        "parameters": float(parameters(model)),
        "layers": steps.double().mean().item(),
        "at_one_layer": 100 * (steps == 1).double().mean().item(),
        "at_all_layers": 100 * (steps == own.layers).double().mean().item(),
    }
    return [run.record(name, value, own.variant, own.setting(), seed=own.seed) for name, value in figures.items()]


# Algorithms.


def lines(task: str, count: int, lengths: tuple[int, int], source: torch.Generator) -> tuple[Tensor, Tensor]:
    """Lines of a task, tokens and labels (count, N), padded behind; the label is -100 outside the answer.

    Copying: the digits, a separator, the digits again. Addition: a + b, a separator, their sum, a digit more than both.
    """
    low, high = lengths
    rows, answers = [], []
    for n in torch.randint(low, high + 1, (count,), generator=source).tolist():
        a, b = torch.randint(DIGITS, (2, n), generator=source).tolist()
        if task == "copying":
            question, answer = a, a
        else:
            total = sum((x + y) * 10**place for place, (x, y) in enumerate(zip(a, b, strict=True)))
            question, answer = [*a, PLUS, *b], [total // 10**place % 10 for place in range(n + 1)]
        rows.append(torch.tensor([*question, SEPARATOR, *answer]))
        answers.append(torch.tensor([-100] * (len(question) + 1) + answer))
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(rows, batch_first=True, padding_value=PAD), pad(answers, batch_first=True, padding_value=-100)


def algorithms(run: Run) -> None:
    """Train every network on every task, and print how it does at lengths seen and unseen."""
    steps = run.given.steps or (4 if run.quick else ALGORITHM_STEPS)
    seeds = min(run.given.seeds or (1 if run.quick else FEW), FEW)
    all_of_them = [(network, task, seed) for seed in range(seeds) for task in TASKS for network in NETWORKS]

    def setting(own: tuple[str, str, int]) -> dict[str, Any]:
        return {"task": own[1], "layers": LAYERS, "steps": steps, "batch": BATCH, "seed": own[2]}

    records = run.trainings(
        all_of_them,
        lambda own: (own[0], setting(own)),
        lambda own: learned(run, *own, steps, setting(own)),
        lambda new: ", ".join(f"{record.value:.1f}" for record in new if record.metric == "accuracy"),
    )
    figures: dict[tuple[str, ...], list[float]] = {}
    for record in records:
        own = record.setting
        if own.get("task") in TASKS and own["steps"] == steps and own["seed"] < seeds:
            key = (own["task"], record.variant, own["digits"], own.get("of", record.metric))
            figures.setdefault(key, []).append(record.value)
    table = Table("task", "depth", *(f"{name} {kind}" for name in ("seen", "longer") for kind in
                                     ("digits, %", "answers, %", "layers")))  # fmt: skip
    table.title = (
        f"Trained on {SEEN[0]} to {SEEN[1]} digits; longer: {LONGER[0]} to {LONGER[1]}; means of {seeds} seeds"
    )
    for task in TASKS:
        for network in NETWORKS:
            cells = [
                f"{mean(figures[task, network, name, kind]):.2f}"
                for name in ("seen", "longer")
                for kind in ("digits", "answers", "layers")
            ]
            table.add_row(task, network, *cells)
    run.show(table)


def learned(run: Run, network: str, task: str, seed: int, steps: int, setting: dict[str, Any]) -> list[Record]:
    """Train a network on a task, and judge it on fresh lines of each range of lengths.

    The short ones may have been learnt: there are only ten copies of one digit.
    """
    set_seed(seed)
    config = GreenformerConfig(
        vocab_size=PAD + 1, pad_token_id=PAD, hidden_size=HIDDEN, num_attention_heads=HEADS, bias=True,
        intermediate_size=FEED_FORWARD, num_hidden_layers=LAYERS, residual="pre", max_position_embeddings=128,
        hidden_dropout_prob=0.0, feed_forward="dense", initializer_range=HIDDEN**-0.5, **NETWORKS[network],
    )  # fmt: skip
    model, source = GreenformerForCausalLM(config).train(), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), ALGORITHM_RATE)
    warmup = max(1, steps // 10)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / warmup, 1 - step / steps))
    for _ in range(steps):
        ids, labels = lines(task, BATCH, SEEN, source)
        # Positions beyond the longest line are seen too.
        offset = int(torch.randint(OFFSET, (1,), generator=source))
        places = torch.arange(offset, offset + ids.shape[1])[None]
        loss = model(ids, ids != PAD, labels=labels, position_ids=places).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rates.step()
    model.eval()
    records = []
    for name, lengths in (("seen", SEEN), ("longer", LONGER)):
        ids, labels = lines(task, 20 if run.quick else 500, lengths, torch.Generator().manual_seed(10_000 + seed))
        is_token, asked = ids != PAD, labels[:, 1:] != -100
        with torch.no_grad():
            guesses, depth = model(ids, is_token).logits[:, :-1].argmax(-1), model.base_model(ids, is_token).steps
        right = guesses == labels[:, 1:]
        whole = (right | ~asked).all(1)
        own = setting | {"digits": name}
        scores = {"digits": right[asked].double().mean().item(), "answers": whole.double().mean().item()}
        records += [
            run.record("accuracy", 100 * x, network, own | {"of": kind}, seed=seed) for kind, x in scores.items()
        ]
        layers = float(LAYERS) if depth is None else depth[is_token].double().mean().item()
        records.append(run.record("layers", layers, network, own, seed=seed))
    return records


if __name__ == "__main__":
    BENCHMARK.run(main)
