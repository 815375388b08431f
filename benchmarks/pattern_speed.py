"""Patterns of attention beside the public implementations: time, peak memory and their growth, on the same q, k and v.

    pip install --no-deps --target PEERS local-attention==1.11.2 einops hyper-connections torch-einops-utils
    python benchmarks/pattern_speed.py [--quick] [--peers PEERS] [--only NAME] [--json results/pattern_speed.jsonl]

8 heads of 64, one sequence, two threads; 513 visible keys a query for windows, 512 for blocks; projections are left out
on all sides. Every side of a setting runs interleaved. Bars: 1.5 times faster than each peer of the same function,
forward and in training, with no more memory; from N 2,048 on faster than dense attention (SDPA); growth N^1.1 at most,
N^1.6 for the two patterns of the Sparse Transformer. Dense attention is run up to 8,192, and the BigBird of
transformers, which makes a matrix of N x N to show its weights, too.
"""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from _harness import PEERS, Benchmark, Option, Run, growth, installed
from attention_speed import DIM, HEADS, Call, cell, given, measured, title
from rich.table import Table
from transformers import BigBirdConfig, BigBirdModel, LongformerConfig
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from greenformers.attention import Shape, build
from greenformers.measure.record import Record

LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
QUADRATIC_UP_TO = 8192
WINDOW, BLOCK, RANDOM = 256, 64, 3
THREADS = 2
FASTER = 1.5

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="two lengths and 3 repeats",
    options=(PEERS, Option("--only", "the contests whose name holds this")),
    threads=THREADS,
)


def main(run: Run) -> bool:
    missed = list[str]()
    if run.given.only and not any(run.given.only in contest.name for contest in CONTESTS):
        run.refuse(
            f"--only must be a part of {'; '.join(contest.name for contest in CONTESTS)}; got {run.given.only!r}"
        )
    for contest in CONTESTS:
        if run.given.only and run.given.only not in contest.name:
            continue
        for training in (False, True):
            records: list[Record] = []
            for length in LENGTHS[:3:2] if run.quick else LENGTHS:
                setting = {"patterns": contest.name, "length": length, "threads": run.given.threads}
                repeats = max(3, 16 * LENGTHS[0] // length)
                records += measured(run, contest.sides(length), training, repeats, setting, next(iter(contest.ours)))
            missed += show(run, contest, training, records)
            run.write(records)
    print("every bar is met" if not missed else "missed:\n" + "\n".join(missed))
    return not missed


@dataclass(frozen=True)
class Contest:
    """Mechanisms of about as many visible keys, and the peers they are compared with."""

    name: str
    ours: dict[str, dict[str, Any]]
    peers: dict[str, Callable[[int], Call]] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    """Peers of the first of ours alone."""
    growth: float = 1.1

    def sides(self, length: int) -> Iterator[tuple[str, Call]]:
        """Dense attention, ours, and the peers that are installed."""
        shape = Shape(HEADS, DIM, length)
        if length <= QUADRATIC_UP_TO:
            yield "sdpa", build("full", shape)
        for name, options in self.ours.items():
            yield name, build(name, shape, **options)
        for peer, make in self.peers.items():
            quadratic = peer == "transformers BigBird" and length > QUADRATIC_UP_TO
            if not quadratic and (peer != "local-attention" or installed("local_attention")):
                yield peer, make(length)


def longformer(length: int) -> Call:
    config = LongformerConfig(
        hidden_size=HEADS * DIM, num_attention_heads=HEADS, num_hidden_layers=1, attention_window=[2 * WINDOW],
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    module = LongformerSelfAttention(config, 0)
    feed = given(module, positions_first=True)
    zeros = torch.zeros(1, length)
    masks = {
        "attention_mask": zeros, "is_index_masked": zeros < 0, "is_index_global_attn": zeros > 0,
        "is_global_attn": False,
    }  # fmt: skip
    # It divides its query in place, and gets one of its own, as from a projection.
    return lambda q, *others: module(feed(q.clone(), *others), **masks)[0]


def bigbird(length: int) -> Call:
    config = BigBirdConfig(
        hidden_size=HEADS * DIM, num_attention_heads=HEADS, block_size=BLOCK, num_random_blocks=RANDOM,
        attention_probs_dropout_prob=0.0, max_position_embeddings=length,
    )  # fmt: skip
    module = BigBirdBlockSparseAttention(config, seed=0).train()  # in evaluation it has no random blocks
    feed = given(module)
    blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(1, length), BLOCK)
    masks = {
        "band_mask": band, "from_mask": rows, "to_mask": columns, "from_blocked_mask": blocked,
        "to_blocked_mask": blocked,
    }  # fmt: skip
    return lambda *tensors: module(feed(*tensors), **masks)[0]


def local_attention(_: int) -> Call:
    package = importlib.import_module("local_attention")
    module: Call = package.LocalAttention(
        window_size=WINDOW, look_backward=1, look_forward=1, exact_windowsize=True, causal=False,
        use_rotary_pos_emb=False,
    )  # fmt: skip
    return module


CONTESTS = (
    Contest(
        "windows",
        {"sliding_window": {"window": WINDOW}, "longformer": {"window": WINDOW, "globals": 1}},
        {"transformers Longformer": longformer, "local-attention": local_attention},
        others=("local-attention",),  # which has no global tokens
    ),
    Contest("bigbird", {"bigbird": {"block": BLOCK, "random": RANDOM}}, {"transformers BigBird": bigbird}),
    Contest(
        "others of about 512 keys",
        {
            "local_blocks": {"block": 256},
            "cascade": {"base": WINDOW + 1},
            "etc": {"radius": WINDOW, "globals": 1, "clip": None},
        },
    ),
    Contest("sparse", {"sparse_strided": {}, "sparse_fixed": {}}, growth=1.6),
)


def show(run: Run, contest: Contest, training: bool, records: list[Record]) -> list[str]:
    """Print a table; returns the bars that were missed."""
    lengths = sorted({record.setting["length"] for record in records})
    table = Table("", *(f"N {length:,}" for length in lengths), "exponent", title=f"{contest.name}, {title(training)}")
    missed = []
    first = next(iter(contest.ours))
    for metric in ("latency", "peak_memory_" + title(training)):
        rows: dict[str, dict[int, float]] = {}
        for record in records:
            if record.metric == metric:
                rows.setdefault(record.variant, {})[record.setting["length"]] = record.value
        for name, row in rows.items():
            cells = [
                cell(row.get(length), rows[first][length], "greenformers" if name == first else name)
                for length in lengths
            ]
            table.add_row(f"{name}, {'ms' if metric == 'latency' else 'MiB'}", *cells, f"{growth(row):.2f}")
        missed += [f"{contest.name}, {title(training)}: {text}" for text in _missed(contest, rows, metric == "latency")]
    run.show(table)
    return missed


def _missed(contest: Contest, rows: dict[str, dict[int, float]], is_time: bool) -> Iterator[str]:
    """What of one measure falls short of its bar."""
    for name in contest.ours:
        own = rows[name]
        if is_time and growth(own) > contest.growth:
            yield f"{name} grows as N^{growth(own):.2f}, bar {contest.growth}"
        for peer in contest.peers:
            if peer in contest.others and name != next(iter(contest.ours)):
                continue
            for length, value in rows.get(peer, {}).items():
                least = FASTER if is_time else 1.0
                if value < least * own[length]:
                    yield f"{name} at N {length:,}: {value / own[length]:.2f}x of {peer}, bar {least}"
        for length, value in rows["sdpa"].items():
            if is_time and contest.peers and length >= 2048 and value < own[length]:
                yield f"{name} at N {length:,}: {value / own[length]:.2f}x of SDPA, bar 1"


if __name__ == "__main__":
    BENCHMARK.run(main)
