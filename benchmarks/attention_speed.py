"""Efficient attention beside the public packages: time, peak memory and their growth, on the same q, k and v.

Install the peers into a folder, and give it:

    pip install --no-deps --target PEERS nystrom-attention==0.0.14 performer-pytorch==1.1.4 einops
    pip install --no-deps --target PEERS linear-attention-transformer==0.19.1 local-attention linformer==0.2.3
    pip install --no-deps --target PEERS axial-positional-embedding product-key-memory==0.1.11 hyper-connections
    pip install --no-deps --target PEERS torch-einops-utils
    python benchmarks/attention_speed.py [--quick] [--peers PEERS] [--only NAME] [--json results/attention_speed.jsonl]

Equal settings: 8 heads of 64, 64 landmarks, 256 features, 128 projected keys, one sequence; projections of inputs are
left out on all sides. Every side of a setting runs interleaved. Bar, of each contest: at least as fast as the best peer
at every N from 512 to 16,384 in inference and training, never more memory, and 1.5 times as fast on the geometric mean
of these. Of the peers' causal forms, linear-attention-transformer is run without its blind spot, so that it sees what
it should. Beside them dense attention, SDPA and eager, whose scores are N x N in memory, up to 4,096. The causal forms
of performer-pytorch and linear-attention-transformer end at 2,048, as they need gigabytes: there the bar is of the
lengths up to that.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import mean
from typing import Any

import torch
from _harness import PEERS, Benchmark, Option, Run, growth, installed, yes
from rich.table import Table
from torch import Tensor, nn
from transformers import NystromformerConfig
from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

from greenformers.attention import Shape, build
from greenformers.measure.grid import attention_by
from greenformers.measure.memory import peak_memory
from greenformers.measure.record import Record, with_ratios

HEADS, DIM, LANDMARKS, FEATURES, K = 8, 64, 64, 256, 128
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
DENSE_UP_TO = 4096
CAUSAL_PEERS_UP_TO = 2048
"""Of those that keep N x D x F numbers several times over: 8 GiB at N 4,096, 32 at 16,384."""
ON_AVERAGE = 1.5
Call = Callable[..., Tensor]
"""A function of q, k and v (B, H, N, D), or of what its `inputs` makes of these."""

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="two lengths and 3 repeats",
    options=(PEERS, Option("--only", "the mechanisms whose name holds this")),
)


def main(run: Run) -> bool:
    lengths = LENGTHS[1:4:2] if run.quick else LENGTHS
    met = True
    for contest, by_mode in compete(run, lambda _: CONTESTS, lengths, lambda length: 15 * 1024 // length):
        met &= show(run, contest, by_mode)
    print(f"every bar met: {yes(met)}")
    return met


def compete(
    run: Run, at: Callable[[int], Sequence[Contest]], lengths: Sequence[int], repeats: Callable[[int], int]
) -> Iterator[tuple[Contest, dict[bool, list[Record]]]]:
    """Each contest that `--only` leaves, measured at all lengths and written, by whether it is in training.

    Args:
        run: the benchmark.
        at: the contests at a length.
        lengths: of the sequences.
        repeats: rounds at a length; at least 5, and of a quick run 3.
    """
    contests = at(lengths[0])
    if run.given.only and not any(run.given.only in str(contest) for contest in contests):
        run.refuse(f"--only must be a part of {'; '.join(map(str, contests))}; got {run.given.only!r}")
    for index, contest in enumerate(contests):
        if run.given.only and run.given.only not in str(contest):
            continue
        by_mode: dict[bool, list[Record]] = {}
        for training in (False, True):
            records: list[Record] = []
            for length in lengths:
                sides, setting = at(length)[index].sides(length), {"mechanism": str(contest), "length": length}
                records += measured(run, sides, training, max(5, repeats(length)), setting)
            run.write(records)
            by_mode[training] = records
        yield contest, by_mode


@dataclass(frozen=True)
class Contest:
    """One mechanism and form, and what it is compared with.

    Attributes:
        name: of the mechanism.
        causal: whether it is.
        options: of the mechanism.
        peers: functions from the length to a peer's call, by name.
        up_to: longest sequence that the peers have the memory for; None for no limit.
        note: what tells it from another of the same mechanism.
    """

    name: str
    causal: bool
    options: dict[str, Any]
    peers: dict[str, Callable[[int], Call]]
    up_to: int | None = None
    note: str = ""

    def __str__(self) -> str:
        return ", ".join([self.name, *(["causal"] if self.causal else []), *([self.note] if self.note else [])])

    def sides(self, length: int) -> Iterator[tuple[str, Call]]:
        """Dense attention twice, ours, and the peers that are installed."""
        shape = Shape(HEADS, DIM, length, causal=self.causal)
        if length <= DENSE_UP_TO:
            yield "sdpa", build("full", shape)
            yield "eager", eager(shape)
        yield "greenformers", build(self.name, shape, **self.options)
        for peer, make in self.peers.items():
            if self.up_to is not None and length > self.up_to:
                continue
            if installed(peer.replace("-", "_")):
                yield peer, make(length)


def eager(shape: Shape) -> Call:
    dense = build("full", shape)

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with attention_by(eager=True):
            out: Tensor = dense(q, k, v)
            return out

    return call


class Given(nn.Module):
    """In place of a projection: what it would give, of the shape its module wants."""

    def __init__(self) -> None:
        super().__init__()
        self.value: Tensor | None = None

    def forward(self, _: Tensor) -> Tensor | None:
        """The tensor that was put here."""
        return self.value


def given(
    module: nn.Module, names: Sequence[str] = ("query", "key", "value"), *, positions_first: bool = False
) -> Callable[..., Tensor]:
    """Replace the projections of an attention module; returns what feeds them, and gives an input of the right size.

    Args:
        module: of the peer.
        names: of its projections to q, k and v.
        positions_first: whether they are to give (N, B, d), and not (B, N, d).
    """
    places = {name: Given() for name in names}
    for name, place in places.items():
        setattr(module, name, place)

    @cache
    def zeros(length: int) -> Tensor:
        return torch.zeros(1, length, HEADS * DIM)

    def feed(*tensors: Tensor) -> Tensor:
        for place, x in zip(places.values(), tensors, strict=True):
            rows = x.transpose(1, 2).flatten(2)  # (B, N, d)
            place.value = rows.transpose(0, 1) if positions_first else rows
        return zeros(tensors[0].shape[2])

    return feed


class Called(nn.Module):
    """A peer's module that is called in its own way with q, k and v.

    Args:
        module: of the peer.
        how: function of the module, q, k and v.
    """

    def __init__(self, module: nn.Module, how: Callable[..., Tensor]) -> None:
        super().__init__()
        self.module, self.how = module, how

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """(B, H, N, D), as ours."""
        return self.how(self.module, q, k, v)


@dataclass(frozen=True)
class Joined:
    """A module that projects its input at once, fed with what this is to give: q, k and v side by side.

    Attributes:
        module: of the peer.
    """

    module: Callable[[Tensor], Any]

    def inputs(self, *given: Tensor) -> tuple[Tensor]:
        """(B, N, 3 d) of q, k and v (B, H, N, D): made before anything is timed."""
        return (torch.cat([x.transpose(1, 2).flatten(2) for x in given], -1),)

    def __call__(self, x: Tensor) -> Tensor:
        """The output of the module."""
        out = self.module(x)
        first: Tensor = out[0] if isinstance(out, tuple) else out
        return first


def nystrom_attention(_: int) -> Call:
    package = importlib.import_module("nystrom_attention")
    module = package.NystromAttention(HEADS * DIM, dim_head=DIM, heads=HEADS, num_landmarks=LANDMARKS, residual=False)
    module.to_qkv = module.to_out = nn.Identity()
    return Joined(module)


def transformers_nystromformer(length: int) -> Call:
    config = NystromformerConfig(
        hidden_size=HEADS * DIM, num_attention_heads=HEADS, num_landmarks=LANDMARKS, segment_means_seq_len=length,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    module = NystromformerSelfAttention(config)
    module.conv_kernel_size = None
    feed = given(module)
    return Called(module, lambda module, *tensors: module(feed(*tensors))[0])


def linformer(length: int) -> Call:
    package = importlib.import_module("linformer")
    module = package.LinformerSelfAttention(HEADS * DIM, length, k=K, heads=HEADS, dim_head=DIM)
    feed = given(module, ("to_q", "to_k", "to_v"))
    module.to_out = nn.Identity()
    return Called(module, lambda module, *tensors: module(feed(*tensors)))


def performer(causal: bool) -> Callable[[int], Call]:
    def make(_: int) -> Call:
        package = importlib.import_module("performer_pytorch")
        module: Call = package.FastAttention(DIM, nb_features=FEATURES, causal=causal)
        return module

    return make


def linear_attention(causal: bool) -> Callable[[int], Call]:
    def make(_: int) -> Call:
        package = importlib.import_module("linear_attention_transformer.linear_attention_transformer")
        if causal:
            return lambda q, k, v: package.causal_linear_attn(q, k, v, bucket_size=1)
        call: Call = package.linear_attn
        return call

    return make


CONTESTS = (
    Contest(
        "nystromformer",
        False,
        {"landmarks": LANDMARKS},
        {"nystrom-attention": nystrom_attention, "transformers": transformers_nystromformer},
    ),
    Contest("linformer", False, {"k": K}, {"linformer": linformer}),
    Contest("performer", False, {"features": FEATURES}, {"performer-pytorch": performer(causal=False)}),
    Contest(
        "performer",
        True,
        {"features": FEATURES},
        {"performer-pytorch": performer(causal=True)},
        up_to=CAUSAL_PEERS_UP_TO,
    ),
    Contest("linear_transformer", False, {}, {"linear-attention-transformer": linear_attention(causal=False)}),
    Contest(
        "linear_transformer",
        True,
        {},
        {"linear-attention-transformer": linear_attention(causal=True)},
        up_to=CAUSAL_PEERS_UP_TO,
    ),
)


def ready(call: Call, length: int, training: bool) -> Callable[[], object]:
    """A forward pass, or a forward and a backward pass, on drawn q, k and v, which lie as projections give them."""
    module = call.module if isinstance(call, Joined) else call
    if isinstance(module, nn.Module):
        module.train(training)
    torch.manual_seed(0)
    drawn: Sequence[Tensor] = [torch.randn(1, length, HEADS, DIM).transpose(1, 2) for _ in range(3)]
    given = [x.requires_grad_(training) for x in (call.inputs(*drawn) if isinstance(call, Joined) else drawn)]

    def forward() -> Tensor:
        with torch.inference_mode():
            return call(*given)

    def both() -> None:
        call(*given).sum().backward()
        for x in given:
            x.grad = None

    return both if training else forward


def measured(
    run: Run,
    sides: Iterable[tuple[str, Call]],
    training: bool,
    repeats: int,
    setting: dict[str, Any],
    to: str = "greenformers",
) -> list[Record]:
    """Time and peak memory of every side at one length, with their ratios to one of them."""
    setting = {**setting, "mode": title(training)}
    calls = {name: ready(call, setting["length"], training) for name, call in sides}
    records = []
    for name, timing in run.times(calls, repeats, quick=3).items():
        records += [
            run.record("latency", timing, name, setting),
            run.record(f"peak_memory_{setting['mode']}", peak_memory(calls[name]) / 2**20, name, setting),
        ]
    return with_ratios(records, to=to)


def show(run: Run, contest: Contest, by_mode: Mapping[bool, list[Record]]) -> bool:
    """Print the tables of a contest, and whether it is won; True if every bar is met."""
    for training, records in by_mode.items():
        run.show(figures(contest, training, records))
    words, met = verdict([record for records in by_mode.values() for record in records])
    print(f"{contest}: {words}")
    return met


def figures(contest: Contest, training: bool, records: list[Record]) -> Table:
    """Time and memory of every side, by length."""
    lengths = sorted({record.setting["length"] for record in records})
    table = Table("", *(f"N {length:,}" for length in lengths), "exponent", title=f"{contest}, {title(training)}")
    for metric in ("latency", "peak_memory_" + title(training)):
        values = {(r.variant, r.setting["length"]): r.value for r in records if r.metric == metric}
        own = {length: values["greenformers", length] for length in lengths}
        for name in dict.fromkeys(variant for variant, _ in values):
            row = {length: values[name, length] for length in lengths if (name, length) in values}
            cells = [cell(row.get(length), own[length], name) for length in lengths]
            table.add_row(f"{name}, {'ms' if metric == 'latency' else 'MiB'}", *cells, f"{growth(row):.2f}")
    return table


def verdict(records: Iterable[Record]) -> tuple[str, bool]:
    """How a contest ends in words, and whether every bar is met: time and memory of the best peer over ours."""
    records = list(records)
    times, memory = beside_best(records, "latency"), beside_best(records, "peak_memory")
    if not times:
        return "no peer is installed", True
    slowest, most = (min(ratios, key=ratios.__getitem__) for ratios in (times, memory))
    average = math.exp(mean(map(math.log, times.values())))
    met = times[slowest] >= 1 and average >= ON_AVERAGE and memory[most] >= 1
    return (
        f"geometric mean of {len(times)} settings {average:.2f}x (bar {ON_AVERAGE}x), least {times[slowest]:.2f}x in "
        f"{slowest[0]} at N {slowest[1]:,} (bar 1x), memory at least {memory[most]:.2f}x less (bar 1x): {yes(met)}"
    ), met


def beside_best(records: Iterable[Record], metric: str) -> dict[tuple[str, int], float]:
    """The least figure of any peer over ours, by mode and length, where a peer was run.

    Args:
        records: of one contest.
        metric: beginning of the metric's name.
    """
    ours: dict[tuple[str, int], float] = {}
    best: dict[tuple[str, int], float] = {}
    for record in records:
        at = (record.setting["mode"], record.setting["length"])
        if not record.metric.startswith(metric) or record.variant in ("sdpa", "eager"):
            continue
        if record.variant == "greenformers":
            ours[at] = record.value
        else:
            best[at] = min(record.value, best.get(at, math.inf))
    return {at: value / ours[at] for at, value in best.items()}


def title(training: bool) -> str:
    return "training" if training else "inference"


def cell(value: float | None, own: float, name: str) -> str:
    if value is None:
        return ""
    return f"{value:.1f}" + ("" if name == "greenformers" else f" ({value / own:.2f}x)")


if __name__ == "__main__":
    BENCHMARK.run(main)
