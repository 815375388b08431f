"""Layers of a kind of their own, bp, star and isab: time, peak memory and their growth, beside a standard layer.

    pip install --no-deps --target PEERS FastNLP==1.0.1
    python benchmarks/recurrence_speed.py [--quick] [--peers PEERS] [--json results/recurrence_speed.jsonl]

One layer of d 256, f 1024, 4 heads, made and run as in a network, batch 1, float32, dropout 0: inference, and training
(forward and backward, the gradient of the input too). bp has k 4, isab 16 inducing points. Beside them a post-norm
layer of dense attention: SDPA, and eager up to 4,096. Causal bp is compared with causal SDPA, and star with the
Star-Transformer of FastNLP, of one layer. All sides at all lengths run interleaved, medians, so that exponents know no
drift; bp's graph, one a length, is made before.

To be expected: dense attention grows from N^1, that of its projections, to N^2, in memory too where it is eager; star
and isab with N; bp with N log N at most, for its projections, of 2 N nodes here, grow with N: only the last of several
layers leaves out the spans. Bar: between the two longest lengths the exponent of time of bp, star and isab is at most
that of N log N + 0.1; overheads flatten what is shorter. And star is nowhere slower than its peer, 1.5 times as fast on
the geometric mean of lengths, inference and training, and takes no more memory.

glibc gives large blocks back to the system after each use, and their pages are made anew: at 16,384 a third of the
time of star and isab in inference, at 4,096 nothing, which adds 0.2 to 0.3 to the exponents. With these set it keeps
them:

    MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=8589934592 MALLOC_TOP_PAD_=268435456
"""

import math
import runpy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from itertools import pairwise
from typing import Any

import torch
from _harness import PEERS, Benchmark, Run, growth, installed, yes
from attention_speed import verdict
from rich.table import Table
from torch import Tensor, nn

from greenformers.measure.grid import MODES, attention_by
from greenformers.measure.memory import peak_memory
from greenformers.measure.record import METRICS, Record, with_ratios
from greenformers.model import GreenformerConfig
from greenformers.model.block import layer_of
from greenformers.model.stack import run as through

LENGTHS, QUICK = (1024, 4096, 16384), (512, 1024)
EAGER_UP_TO = 4096
TURN, REPEATS = 4096, 3
"""Shorter lengths run several times a turn, until these are so many positions; turns."""
TIMES = {"inference": "latency", "training": "train_step"}
ALLOWED = 0.1

BENCHMARK = Benchmark(__file__, __doc__, quick=f"N {QUICK[0]} and {QUICK[1]:,}", options=(PEERS,))


def main(run: Run) -> bool:
    met = True
    every = list[Record]()
    for mode in MODES:
        records = measured(run, QUICK if run.quick else LENGTHS, mode)
        for metric in (TIMES[mode], f"peak_memory_{mode}"):
            table, within = shown(records, metric)
            met &= within or metric not in TIMES.values()
            run.show(table)
        run.write(records)
        every += records
    bar = f"time of bp, star and isab grows as N log N or slower, exponents by {ALLOWED} more at most"
    print(f"{bar}: {yes(met)}")
    words, ahead = beside_peer(every)
    print(f"star beside {PEER}: {words}")
    return met and ahead


@dataclass(frozen=True)
class Side:
    """A layer: the block, and how it attends."""

    name: str
    block: str = "standard"
    options: dict[str, Any] | None = None
    causal: bool = False
    eager: bool = False

    def __str__(self) -> str:
        return f"{self.name}, causal" if self.causal else self.name


BASE, PEER = "sdpa", "FastNLP star"
SIDES = (
    Side(BASE),
    Side("eager", eager=True),
    Side("bp", "bp", {"k": 4}),
    Side("star", "star"),
    Side(PEER, PEER),
    Side("isab", "isab", {"m": 16}),
    Side(BASE, causal=True),
    Side("bp", "bp", {"k": 4}, causal=True),
)


def call_of(side: Side, length: int, training: bool) -> Callable[[], object]:
    """A forward pass of one layer, or a forward and a backward pass."""
    torch.manual_seed(0)
    over = star_of_peer if side.block == PEER else ours
    layer, output = over(side, length, training)
    x = torch.randn(1, length, 256, requires_grad=training)
    gradient = torch.randn(1, length, 256)

    def forward() -> Tensor:
        with torch.inference_mode(), attention_by(side.eager):
            return output(x)

    def both() -> None:
        with attention_by(side.eager):
            output(x).backward(gradient)
        layer.zero_grad(set_to_none=True)
        x.grad = None

    return both if training else forward


def ours(side: Side, length: int, training: bool) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """A layer of this package, and what computes its output."""
    config = GreenformerConfig(
        hidden_size=256, num_attention_heads=4, intermediate_size=1024, num_hidden_layers=1, hidden_dropout_prob=0.0,
        max_position_embeddings=length, block=side.block, block_options=side.options,
    )  # fmt: skip
    layer = layer_of(config, 0, causal=side.causal).train(training)
    return layer, lambda x: through([layer], x)[0]


def star_of_peer(_: Side, length: int, training: bool) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """The Star-Transformer of FastNLP, of which one file is loaded: the package asks for much that is not needed."""
    file = metadata.distribution("FastNLP").locate_file("fastNLP/modules/torch/encoder/star_transformer.py")
    layer = runpy.run_path(str(file))["StarTransformer"](256, 1, 4, 64, dropout=0.0).train(training)
    mask = torch.ones(1, length, dtype=torch.bool)
    return layer, lambda x: layer(x, mask)[0]


def sides() -> tuple[Side, ...]:
    """All, or all but the peer where it is not installed."""
    return SIDES if installed("fastNLP") else tuple(side for side in SIDES if side.block != PEER)


def measured(run: Run, lengths: tuple[int, ...], mode: str) -> list[Record]:
    """Time and peak memory of all sides, with their ratios to SDPA."""
    where = {f"{side} {length}": (side, length) for length in lengths for side in sides()}
    where = {name: at for name, at in where.items() if not at[0].eager or at[1] <= EAGER_UP_TO}
    calls = {name: call_of(*at, mode == "training") for name, at in where.items()}
    peaks = {name: _peak(call) for name, call in calls.items()}  # which warms up
    turns = {name: max(1, TURN // where[name][1]) for name in calls}
    several = {name: partial(_again, call, turns[name]) for name, call in calls.items()}
    records = []
    for name, timing in run.times(several, REPEATS, warmup=0).items():
        side, length = where[name]
        setting = {"length": length, "causal": side.causal, "mode": mode}
        ms, spread = (1e3 * seconds / turns[name] for seconds in (timing.median, timing.q3 - timing.q1))
        records += [
            run.record(TIMES[mode], ms, side.name, setting, spread=spread),
            run.record(f"peak_memory_{mode}", peaks[name], side.name, setting),
        ]
    return with_ratios(records, BASE)


def _peak(call: Callable[[], object]) -> float:
    """MiB, of the second call: the first one makes what is kept."""
    call()
    return peak_memory(call) / 2**20


def _again(call: Callable[[], object], times: int) -> None:
    for _ in range(times):
        call()


def ends(lengths: Iterable[int]) -> list[tuple[int, int]]:
    """Neighbouring lengths, then the shortest and the longest where there are more than two."""
    pairs = list(pairwise(sorted(lengths)))
    return pairs if len(pairs) < 2 else [*pairs, (pairs[0][0], pairs[-1][1])]


def exponents(values: dict[int, float]) -> Iterator[float]:
    """Growth between `ends`."""
    for low, high in ends(values):
        yield growth({low: values[low], high: values[high]})


def shown(records: list[Record], metric: str) -> tuple[Table, bool]:
    """A table of one metric; True if its last exponents are within the bar."""
    lengths = sorted({record.setting["length"] for record in records})
    table = Table(
        METRICS[metric].unit, *(f"N {length:,}" for length in lengths), *(f"{a:,} to {b:,}" for a, b in ends(lengths)),
        title=f"{METRICS[metric].label}; in brackets how many times better than SDPA; exponents of growth",
    )  # fmt: skip
    expected = list(exponents({length: length * math.log(length) for length in lengths}))
    last, met = len(lengths) - 2, True
    for side in SIDES:
        own = {
            record.setting["length"]: record
            for record in records
            if (record.metric, record.variant, record.setting["causal"]) == (metric, side.name, side.causal)
        }
        rates = list(exponents({length: record.value for length, record in own.items()}))
        if len(own) < len(lengths):
            rates = rates[: len(own) - 1]  # of neighbouring lengths alone
        elif side.block not in ("standard", PEER):
            met &= rates[last] <= expected[last] + ALLOWED
        cells = [cell(own[length]) if length in own else "" for length in lengths]
        table.add_row(str(side), *cells, *(f"{rate:.2f}" for rate in rates))
    table.add_row("N log N would give", *("" for _ in lengths), *(f"{rate:.2f}" for rate in expected))
    return table, met


def beside_peer(records: list[Record]) -> tuple[str, bool]:
    """How star ends beside its peer, in words, and whether it meets the bars of every contest."""
    names = {"star": "greenformers", PEER: PEER}
    own = [record for record in records if record.variant in names]
    times = TIMES.values()
    return verdict(
        replace(record, variant=names[record.variant], metric="latency" if record.metric in times else record.metric)
        for record in own
    )


def cell(record: Record) -> str:
    number = f"{record.value:,.1f}"
    return number if record.variant == BASE else f"{number} ({record.ratio:.2f}x)"


if __name__ == "__main__":
    BENCHMARK.run(main)
