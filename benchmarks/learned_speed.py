"""Learned patterns beside the public packages: time and peak memory on the same q, k and v.

Install the peers into a folder, and give it:

    pip install --no-deps --target PEERS reformer-pytorch==1.4.4 routing-transformer==1.6.1 sinkhorn-transformer==0.11.4
    pip install --no-deps --target PEERS axial-positional-embedding product-key-memory==0.1.11 local-attention einops
    pip install --no-deps --target PEERS mixture-of-experts hyper-connections torch-einops-utils colt5-attention
    python benchmarks/learned_speed.py [--quick] [--peers PEERS] [--only NAME] [--json results/learned_speed.jsonl]

8 heads of 64, one sequence, projections left out on all sides; chunks and blocks of 64, two rounds of hashing, N / 64
clusters with 64 queries and keys, of which a query that no cluster takes gets nothing, as in the peer, and once more
its nearest cluster, as by default ("every query"). Our causal forms cut each bucket, the peers' the sorted sequence.
Every side of a setting runs interleaved; dense attention, SDPA and eager, beside them up to 4,096. Bar, of each
contest: at least as fast as the best peer at every N from 512 to 16,384 in inference and training, never more memory,
and 1.5 times as fast on the geometric mean of these.
"""

import importlib
from functools import partial
from typing import Any

import torch
from _harness import PEERS, Benchmark, Option, Run, yes
from attention_speed import DIM, HEADS, LENGTHS, Call, Called, Contest, compete, show
from torch import Tensor, nn
from transformers import ReformerConfig
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

SIZE, ROUNDS = 64, 2

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="one length and 3 repeats",
    options=(PEERS, Option("--only", "the mechanisms whose name holds this")),
)


def main(run: Run) -> bool:
    met = True
    for contest, by_mode in compete(run, contests, LENGTHS[1:2] if run.quick else LENGTHS, lambda _: 7):
        met &= show(run, contest, by_mode)
    print(f"every bar met: {yes(met)}")
    return met


def folded(x: Tensor) -> Tensor:
    """(1, H, N, D) to (H, N, D)."""
    return x.flatten(0, 1)


def reformer_pytorch(_: int, causal: bool = False) -> Call:
    package: Any = importlib.import_module("reformer_pytorch.reformer_pytorch")
    module = package.LSHAttention(bucket_size=SIZE, n_hashes=ROUNDS, causal=causal, allow_duplicate_attention=False)
    return Called(module, lambda module, q, _, v: module(folded(q), folded(v))[0].view(v.shape))


def transformers_reformer(length: int, causal: bool = False) -> Call:
    config = ReformerConfig(
        hidden_size=HEADS * DIM, num_attention_heads=HEADS, attention_head_size=DIM, lsh_attn_chunk_length=SIZE,
        num_hashes=ROUNDS, num_buckets=2 * length // SIZE, is_decoder=causal, lsh_attention_probs_dropout_prob=0.0,
        lsh_num_chunks_before=1, lsh_num_chunks_after=0,
    )  # fmt: skip
    module: Any = LSHSelfAttention(config)
    given: dict[str, Tensor] = {}
    module.query_key, module.value = (_Given(given, name) for name in "qv")

    def how(module: nn.Module, q: Tensor, _: Tensor, v: Tensor) -> Tensor:
        given.update({name: x.transpose(1, 2).flatten(2) for name, x in (("q", q), ("v", v))})
        out: Tensor = module(given["q"]).hidden_states
        return out

    return Called(module, how)


class _Given(nn.Module):
    """In place of a projection: what it is to give."""

    def __init__(self, given: dict[str, Tensor], name: str) -> None:
        super().__init__()
        self.given, self.name = given, name

    def forward(self, _: Tensor) -> Tensor:
        return self.given[self.name]


def routing_transformer(length: int, causal: bool = False) -> Call:
    package: Any = importlib.import_module("routing_transformer.routing_transformer")
    module = package.KmeansAttention(length // SIZE, SIZE, HEADS, DIM, causal=causal, shared_qk=causal)
    module(*(torch.randn(1, HEADS, length, DIM) for _ in range(3)))  # its centroids begin with the first batch
    return Called(module, lambda module, q, k, v: module(q, k, v)[0])


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
        Contest("reformer", True, {"chunk": SIZE, "rounds": ROUNDS, "n_buckets": 2 * length // SIZE},
                {"reformer-pytorch": partial(reformer_pytorch, causal=True),
                 "transformers": partial(transformers_reformer, causal=True)}),
        Contest("routing", False, {"clusters": length // SIZE, "window": SIZE, "every_query": False},
                {"routing-transformer": routing_transformer}),
        Contest("routing", False, {"clusters": length // SIZE, "window": SIZE},
                {"routing-transformer": routing_transformer}, note="every query"),
        Contest("routing", True, {"clusters": length // SIZE, "window": SIZE},
                {"routing-transformer": partial(routing_transformer, causal=True)}),
        Contest("sinkhorn", False, {"block": SIZE}, {"sinkhorn-transformer": sinkhorn_transformer}),
    )  # fmt: skip


if __name__ == "__main__":
    BENCHMARK.run(main)
