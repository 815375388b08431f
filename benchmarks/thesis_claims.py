"""Two claims of the Greenformers thesis (Cahyawijaya 2021, 3.3.2 and 3.3.3) that have no figure there, measured.

    python benchmarks/thesis_claims.py [--quick] [--json results/thesis_claims.jsonl]

1. A larger width favours low rank: two layers of width d, heads of 64, f = 4 d, at N 128, with the Low-Rank Transformer
   of rank 64 in turns with the dense one; inference and training.
2. Varying length hurts Linformer, whose longest length is one of its parameters: two layers of d 768, 16 texts a batch,
   all of 1,024 tokens, or of 64 to 1,024 at random, padded to the longest of the batch; and padded to 1,024, as a
   Linformer must be that takes no other length. Time of a token that is no padding, beside dense attention.

Times are medians, in turns; times as fast are those of the dense network of the same batch.
"""

import random
from collections.abc import Sequence
from functools import partial

import torch
from _harness import Benchmark, Option, Run, yes
from rich.table import Table
from torch import Tensor

from greenformers.measure.flops import flops
from greenformers.measure.grid import BASELINE, Cell, Network, Stack
from greenformers.measure.latency import Timing
from greenformers.measure.record import Record, with_ratios
from greenformers.model.stack import run as through

WIDTHS, RANK, SHORT, BATCH = (256, 512, 768, 1024, 1536), 64, 128, 16
LONG, SHORTEST, K = 1024, 64, 128
VARIANTS = {BASELINE: None, "lrt": RANK, "linformer": K}

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="two widths, short texts and 3 rounds",
    options=(Option("--claim", "one of the two", choices=("width", "length")),),
    threads=2,
)


def main(run: Run) -> None:
    torch.manual_seed(0)
    if run.given.claim in (None, "width"):
        widths(run)
    if run.given.claim in (None, "length"):
        lengths(run)


def widths(run: Run) -> None:
    """Times as fast as dense by width."""
    table = Table(
        "d", "inference", "FLOPs", "training", title=f"LRT of rank {RANK} at N {SHORT}: times as fast as dense"
    )
    ratios = []
    for width in WIDTHS[:2] if run.quick else WIDTHS:
        network = Network(hidden=width, heads=width // 64, feed_forward=4 * width)
        stacks = {name: Stack(network, Cell(name, rank, SHORT)) for name, rank in ((BASELINE, None), ("lrt", RANK))}
        x = torch.randn(BATCH, SHORT, width)
        records: list[Record] = []
        for mode, call in (("inference", infer), ("training", train)):
            times = run.times({name: partial(call, stack, x) for name, stack in stacks.items()}, 15, 3)
            metric = "latency" if mode == "inference" else "train_step"
            records += recorded(run, metric, times, {"width": width, "length": SHORT, "batch": BATCH, "rank": RANK})
        counts = [flops(partial(infer, stack, x)) for stack in stacks.values()]
        run.write(records)
        fast = {record.metric: record.ratio or 0.0 for record in records if record.variant == "lrt"}
        ratios.append(fast["latency"])
        table.add_row(
            str(width), f"{fast['latency']:.2f}x", f"{counts[0] / counts[1]:.2f}x", f"{fast['train_step']:.2f}x"
        )
    run.show(table)
    print(f"each larger width is faster by more: {yes(ratios == sorted(ratios))}")


def lengths(run: Run) -> None:
    """Time of a token at one length and at varying lengths."""
    long, shortest = (256, 16) if run.quick else (LONG, SHORTEST)
    draw = random.Random(0)
    varying = [draw.randint(shortest, long) for _ in range(BATCH)]
    stacks = {name: Stack(Network(), Cell(name, rank, long)).eval() for name, rank in VARIANTS.items()}
    batches = {
        "all of one length": ([long] * BATCH, long),
        "varying, padded to the longest": (varying, max(varying)),
        f"varying, padded to {long:,}": (varying, long),
        "varying, sorted into four batches": (sorted(varying), 0),
    }
    table = Table("texts", *stacks, title=f"microseconds of a token (times as fast as dense), N up to {long:,}")
    for name, (texts, width) in batches.items():
        parts = [texts] if width else [texts[at : at + BATCH // 4] for at in range(0, BATCH, BATCH // 4)]
        inputs = [padded(part, width or max(part)) for part in parts]
        times = run.times({kind: partial(masked, stack, inputs) for kind, stack in stacks.items()}, 11, 3)
        setting = {"texts": name, "length": long, "batch": BATCH, "k": K, "rank": RANK, "tokens": sum(texts)}
        records = recorded(run, "latency", times, setting)
        run.write(records)
        table.add_row(
            name, *(f"{1e3 * record.value / sum(texts):.0f} ({record.ratio:.2f}x)" for record in records)
        )  # fmt: skip
    run.show(table)


def recorded(run: Run, metric: str, times: dict[str, Timing], setting: dict[str, object]) -> list[Record]:
    return with_ratios([run.record(metric, time, name, setting) for name, time in times.items()], to=BASELINE)


def infer(stack: Stack, x: Tensor) -> None:
    with torch.inference_mode():
        stack.eval()(x)


def train(stack: Stack, x: Tensor) -> None:
    stack.train()(x).sum().backward()
    stack.zero_grad()


def padded(texts: Sequence[int], width: int) -> tuple[Tensor, Tensor]:
    """States of texts of these lengths, and the mask of what is no padding."""
    mask = torch.arange(width) < torch.tensor(texts)[:, None]
    return torch.randn(len(texts), width, Network().hidden), mask


def masked(stack: Stack, inputs: Sequence[tuple[Tensor, Tensor]]) -> None:
    with torch.inference_mode():
        for x, mask in inputs:
            through(stack.layers, x, mask)


if __name__ == "__main__":
    BENCHMARK.run(main)
