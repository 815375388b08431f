"""Learned patterns beside the public packages: time and peak memory on the same q, k and v.

Install the peers into a folder, and give it:

    pip install --no-deps --target PEERS reformer-pytorch==1.4.4 routing-transformer==1.6.1 sinkhorn-transformer==0.11.4
    pip install --no-deps --target PEERS axial-positional-embedding product-key-memory local-attention einops
    pip install --no-deps --target PEERS mixture-of-experts hyper-connections torch-einops-utils colt5-attention
    python benchmarks/learned_speed.py [--quick] [--peers PEERS] [--only NAME] [--json results/learned_speed.jsonl]

8 heads of 64, one sequence, bidirectional, projections left out on all sides; chunks and blocks of 64, two rounds of
hashing, N / 64 clusters with 64 queries and keys. Every side of a setting runs interleaved; dense attention, SDPA
and eager, beside them. Bar: never slower than the fastest peer, and never more memory; goal: 1.5x.
"""

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

import torch
from attention_speed import DIM, HEADS, Call, Contest, measured, show
from rich.console import Console
from torch import Tensor, nn
from transformers import ReformerConfig
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

from greenformers.measure.record import Record, append, context

LENGTHS = (1024, 4096, 8192)
SIZE, ROUNDS = 64, 2


def folded(x: Tensor) -> Tensor:
    """(1, H, N, D) to (H, N, D)."""
    return x.flatten(0, 1)


def reformer_pytorch(_: int) -> Call:
    package: Any = importlib.import_module("reformer_pytorch.reformer_pytorch")
    module = package.LSHAttention(bucket_size=SIZE, n_hashes=ROUNDS, causal=False, allow_duplicate_attention=False)
    return lambda q, _, v: module(folded(q), folded(v))[0].view(v.shape)


def transformers_reformer(length: int) -> Call:
    config = ReformerConfig(
        hidden_size=HEADS * DIM, num_attention_heads=HEADS, attention_head_size=DIM, lsh_attn_chunk_length=SIZE,
        num_hashes=ROUNDS, num_buckets=2 * length // SIZE, is_decoder=False, lsh_attention_probs_dropout_prob=0.0,
        lsh_num_chunks_before=1, lsh_num_chunks_after=0,
    )  # fmt: skip
    module: Any = LSHSelfAttention(config)
    given: dict[str, Tensor] = {}
    module.query_key, module.value = (_Given(given, name) for name in "qv")

    def call(q: Tensor, _: Tensor, v: Tensor) -> Tensor:
        given.update({name: x.transpose(1, 2).flatten(2) for name, x in (("q", q), ("v", v))})
        out: Tensor = module(given["q"]).hidden_states
        return out

    return call


class _Given(nn.Module):
    """In place of a projection: what it is to give."""

    def __init__(self, given: dict[str, Tensor], name: str) -> None:
        super().__init__()
        self.given, self.name = given, name

    def forward(self, _: Tensor) -> Tensor:
        return self.given[self.name]


def routing_transformer(length: int) -> Call:
    package: Any = importlib.import_module("routing_transformer.routing_transformer")
    module = package.KmeansAttention(length // SIZE, SIZE, HEADS, DIM, causal=False)
    module(*(torch.randn(1, HEADS, length, DIM) for _ in range(3)))  # its centroids begin with the first batch
    return lambda q, k, v: module(q, k, v)[0]


def sinkhorn_transformer(length: int) -> Call:
    package: Any = importlib.import_module("sinkhorn_transformer.sinkhorn_transformer")
    # Without this it takes the one best block in place of Sinkhorn's mixture.
    module: Call = package.SinkhornAttention(SIZE, HEADS * DIM, DIM, HEADS, length, non_permutative=False)
    return module


def contests(length: int) -> tuple[Contest, ...]:
    """The sizes depend on the length."""
    return (
        Contest("reformer", False, {"chunk": SIZE, "rounds": ROUNDS, "n_buckets": 2 * length // SIZE},
                {"reformer-pytorch": reformer_pytorch, "transformers": transformers_reformer}),
        Contest("routing", False, {"clusters": length // SIZE, "window": SIZE},
                {"routing-transformer": routing_transformer}),
        Contest("sinkhorn", False, {"block": SIZE}, {"sinkhorn-transformer": sinkhorn_transformer}),
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one length and 3 repeats")
    parser.add_argument("--peers", type=Path, help="folder the peers are installed in")
    parser.add_argument("--only", help="the mechanisms whose name holds this")
    parser.add_argument("--json", type=Path, help="file the records are added to")
    given = parser.parse_args()
    if given.peers:
        sys.path.append(str(given.peers))
    command = "python benchmarks/learned_speed.py --peers PEERS" + " --quick" * given.quick
    blank = Record("learned_speed", "", {}, "latency", 0.0, "ms", context=context(command, seed=0))
    console, met = Console(width=130), True
    lengths = LENGTHS[:1] if given.quick else LENGTHS
    for index, contest in enumerate(contests(LENGTHS[0])):
        if given.only and given.only not in contest.name:
            continue
        for training in (False, True):
            found: list[Record] = []
            for length in lengths:
                own = contests(length)[index]
                setting = {"mechanism": own.name, "length": length}
                found += measured(own.sides(length), training, 3 if given.quick else 7, blank, setting)
            met &= show(console, contest, training, found)
            if given.json:
                append(given.json, found)
    console.print(f"never slower, and never with more memory, than the best peer: {'yes' if met else 'no'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
