"""Experts in a small language model of bytes, beside a dense twin of as many operations a token, and their time.

    python benchmarks/switch.py [--quick] [--json results/switch.jsonl] [--part training]

Training: causal on Tiny Shakespeare, 8 experts (top-1, dropless) in place of each feed-forward block of the same
widths; three seeds, each with its own weights and batches, the same for all. The experts are trained for as many steps
as the dense twin, and once more for half of them, by a schedule of that length; time is that of steps of both by turns,
on one batch, with the weights that they begin with. Layer: one block of 8 experts of a causal stack, dropless as in
training, beside the dense one, on one thread, forward in inference, and forward and backward in training; both take
turns. Bars: after half of the steps at most the dense twin's last loss in every seed, in at most 0.6 of its time; and a
layer in at most 1.3 times its time. With --json a training that is in the file is not repeated.
"""

from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from _harness import KNOWN, Benchmark, Option, Run, data, fitted, yes
from _train_times import STILL
from rich.table import Table
from torch import nn
from transformers import PreTrainedModel, set_seed

from greenformers.data import Text, train_tokenizer
from greenformers.data import load as load_data
from greenformers.feed_forward import FeedForward, Size, build
from greenformers.measure.record import Record
from greenformers.train.causal_lm import CausalLM
from greenformers.train.schedule import Schedule
from greenformers.train.stream import Stream

DATA, LENGTH = "tinyshakespeare", 256
HIDDEN, HEADS, LAYERS, FEED_FORWARD, EXPERTS = 64, 4, 2, 256, 8
STEPS, TOKENS, RATE, EVALUATIONS = 2000, 1024, 5e-3, 40
SEEDS = 3
CHARACTERS = {"train": 1_000_000, "valid": 50_000}
QUICK = {"train": 30_000, "valid": 2_000}
DENSE, SWITCH = "dense", "switch"
KINDS: dict[str, dict[str, Any]] = {DENSE: {}, SWITCH: {"experts": EXPERTS}}
PARTS = ("training", "layer")
SIZES = {"128 x 512": (128, 512), "256 x 1024": (256, 1024), "512 x 2048": (512, 2048)}
POSITIONS, BAR, SHARE = 2048, 1.3, 0.6
"""Positions of a layer; its time, and half of the training's, in times of the dense one at most."""

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="hardly any training, the smallest layer, 3 turns in place of 15; the figures mean nothing",
    threads=1,
    options=(
        data("--data", ".", "folder of the data set's folder", DATA),
        Option("--steps", f"of each training; {STEPS} if not given", int),
        Option("--seeds", f"trainings of each; {SEEDS} if not given", int),
        Option("--part", "one of the two; both if not given", choices=PARTS),
    ),
    json=KNOWN,
)


def main(run: Run) -> bool:
    parts = PARTS if run.given.part is None else (run.given.part,)
    met = True
    if "training" in parts:
        met &= trainings(run)
    if "layer" in parts:
        met &= layer(run)
    return met


class Training(NamedTuple):
    """One training: a kind of feed-forward block, from a seed."""

    kind: str
    seed: int
    steps: int
    characters: int
    threads: int

    def setting(self, step: int) -> dict[str, Any]:
        """What tells its records from others."""
        return {
            "length": LENGTH, "batch": TOKENS // LENGTH, "hidden": HIDDEN, "layers": LAYERS, "heads": HEADS,
            "feed_forward": FEED_FORWARD, "learning_rate": RATE, "options": KINDS[self.kind],
            "characters": self.characters, "steps": self.steps, "seed": self.seed, "step": step,
            "threads": self.threads,
        }  # fmt: skip


def trainings(run: Run) -> bool:
    """Train both kinds, print their losses, and say whether the bar is met; of a quick run it always is."""
    given, characters = run.given, QUICK if run.quick else CHARACTERS
    steps, seeds = given.steps or (4 if run.quick else STEPS), given.seeds or (1 if run.quick else SEEDS)
    if steps < 2:
        run.refuse(f"--steps must be at least 2, got {steps}")
    task = objective(given.data, characters)

    def of(kind: str, seed: int, steps: int) -> Training:
        return Training(kind, seed, steps, characters["train"], given.threads)

    kinds = ((DENSE, steps), (SWITCH, steps), (SWITCH, steps // 2))
    plan = [of(kind, seed, own) for seed in range(seeds) for kind, own in kinds]
    records = run.trainings(
        plan,
        lambda own: (own.kind, own.setting(own.steps)),
        lambda own: trained(run, own, task),
        lambda own: f"loss {own[-2].value:.4f}, {1000 * own[-1].value / own[-1].setting['steps']:.0f} ms a step",
    )
    table = Table("seed", "dense", "switch", "difference", "steps to the dense loss", "half of the steps", "difference")
    table.title = f"Validation loss (nats a byte) after {steps} steps, {EXPERTS} experts, as many FLOPs a token"
    apart = list[float]()
    for seed in range(seeds):
        dense, experts, half = (curve(of(kind, seed, own), records) for kind, own in kinds)
        final, last = dense[steps], half[steps // 2]
        reached = next((step for step, loss in sorted(experts.items()) if loss <= final), None)
        apart.append(last - final)
        table.add_row(
            str(seed), f"{final:.4f}", f"{experts[steps]:.4f}", f"{experts[steps] - final:+.4f}",
            "never" if reached is None else str(reached), f"{last:.4f}", f"{last - final:+.4f}",
        )  # fmt: skip
    run.show(table)
    times = run.times({kind: stepped(of(kind, 0, steps), task) for kind in KINDS}, repeats=15, quick=3)
    run.write([run.record("train_step", timing, kind, of(kind, 0, steps).setting(0)) for kind, timing in times.items()])
    share = steps // 2 * times[SWITCH].median / (steps * times[DENSE].median)
    met = all(gap <= 0 for gap in apart) and share <= SHARE
    print(
        f"half of the steps, {share:.2f} of the time (at most {SHARE}): mean difference {mean(apart):+.4f}; "
        f"no worse in any seed, and in that time: {yes(met)}"
    )
    return met or run.quick


def curve(own: Training, records: list[Record]) -> dict[int, float]:
    """Validation losses of a training by step."""
    setting = {name: value for name, value in own.setting(0).items() if name != "step"}
    ours = [record for record in records if record.variant == own.kind and record.setting.items() >= setting.items()]
    return {record.setting["step"]: record.value for record in ours if record.metric == "loss"}


def objective(folder: Path, characters: dict[str, int]) -> CausalLM:
    """The task on the first bytes of its data; one token is one byte."""
    text = load_data(DATA, folder / DATA)
    assert isinstance(text, Text)
    train, valid = (text.split(split)[:count] for split, count in characters.items())
    return CausalLM(Text(DATA, train, valid, ""), train_tokenizer("bytes", train, max_length=LENGTH), LENGTH)


def begun(own: Training, task: CausalLM) -> PreTrainedModel:
    """The network of a training, with the weights that it begins with."""
    config = task.config(
        hidden_size=HIDDEN, num_attention_heads=HEADS, intermediate_size=FEED_FORWARD, num_hidden_layers=LAYERS,
        hidden_dropout_prob=0.0, feed_forward=own.kind, feed_forward_options=KINDS[own.kind],
    )  # fmt: skip
    set_seed(own.seed)
    return task.build(config)


def stepped(own: Training, task: CausalLM) -> Callable[[], object]:
    """A step of a training, of its first batch, at a rate at which weights stay as they are."""
    model = begun(own, task).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=STILL, fused=True)
    stream = Stream(task, TOKENS // LENGTH, own.steps, own.seed)
    batch = task.collate([stream[place] for place in range(stream.batch)])

    def call() -> None:
        model(**batch).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return call


def trained(run: Run, own: Training, task: CausalLM) -> list[Record]:
    """Train, with the validation loss now and then. The seed is that of the weights and of the batches."""
    model = begun(own, task)
    schedule = Schedule(
        steps=own.steps, batch_size=TOKENS // LENGTH, learning_rate=RATE, seed=own.seed, log_every=own.steps,
        evaluate_every=max(1, own.steps // EVALUATIONS), save_every=own.steps,
    )  # fmt: skip
    history = fitted(model, task, schedule, f"{own.kind} {own.seed}")
    figures = [(step, "loss", value) for step, value in history.curve("eval_loss")]
    figures.append((own.steps, "train_time", history.seconds))
    return [run.record(metric, value, own.kind, own.setting(step), seed=own.seed) for step, metric, value in figures]


def layer(run: Run) -> bool:
    """Time one block of each kind, and say whether the bar is met; of a quick run it always is."""
    table = Table(
        "widths", "pass", "dense, ms", "switch, ms", "ratio", title=f"{POSITIONS} positions, {EXPERTS} experts"
    )
    met, records = True, list[Record]()
    for place, (width, hidden) in list(SIZES.items())[: 1 if run.quick else None]:
        torch.manual_seed(0)
        size = Size(width, hidden, nn.GELU, causal=True)  # in which experts are dropless, as in training
        blocks = {kind: build(kind, size, **options) for kind, options in KINDS.items()}
        x = torch.randn(POSITIONS // LENGTH, LENGTH, width)
        for metric, passes in (("latency", inference), ("train_step", training)):
            times = run.times({kind: passes(block, x) for kind, block in blocks.items()}, repeats=15, quick=3)
            ratio = times[SWITCH].median / times[DENSE].median
            met &= ratio <= BAR
            setting = {"width": width, "hidden": hidden, "positions": POSITIONS, "experts": EXPERTS, "capacity": None}
            for kind, timing in times.items():
                own = 1 / ratio if kind == SWITCH else 1.0
                records.append(run.record(metric, timing, kind, setting, ratio=own, to=DENSE))
            cells = [f"{1e3 * times[kind].median:.1f}" for kind in KINDS]
            table.add_row(place, "inference" if metric == "latency" else "training", *cells, f"{ratio:.2f}")
    run.show(table)
    print(f"at most {BAR} times the time of the dense block: {yes(met)}")
    run.write(records)
    return met or run.quick


def inference(block: FeedForward, x: torch.Tensor) -> Callable[[], object]:
    """A pass without gradients."""

    def call() -> None:
        with torch.no_grad():
            block.eval()(x)

    return call


def training(block: FeedForward, x: torch.Tensor) -> Callable[[], object]:
    """A pass forward and backward."""
    given = x.clone().requires_grad_()

    def call() -> None:
        block.train().zero_grad()
        given.grad = None
        y, loss = block.forward_with_loss(given) if block.has_loss else (block(given), 0.0)
        (y.square().mean() + loss).backward()

    return call


if __name__ == "__main__":
    BENCHMARK.run(main)
