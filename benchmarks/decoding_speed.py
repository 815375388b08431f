"""Tokens a second of `generate` at contexts of 1K to 64K: kernel attention with its state, softmax with its cache.

    python benchmarks/decoding_speed.py [--quick] [--json results/decoding_speed.jsonl]

A decoder of 4 layers of 256 with random weights continues each context by 32 tokens at a time; variants and contexts
take turns. Bar: at 64K within 10 % of the pace at 1K for both kernels.
"""

import argparse
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from greenformers.measure.latency import interleaved
from greenformers.measure.record import Record, append, context
from greenformers.model import GreenformerConfig, GreenformerForCausalLM

KERNELS, SOFTMAX = ("linear_transformer", "performer"), "full"
CONTEXTS, NEW, BAR = (1024, 4096, 16384, 65536), 32, 0.9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="up to 4K, 5 turns in place of 15")
    parser.add_argument("--json", type=Path, help="file the records are added to")
    given = parser.parse_args()
    contexts = CONTEXTS[:2] if given.quick else CONTEXTS
    calls = {}
    for name in (*KERNELS, SOFTMAX):
        model = decoder(name)
        for length in contexts:
            calls[f"{name} {length}"] = continuation(model, length)
    timings = interleaved(calls, repeats=5 if given.quick else 15, warmup=1)
    pace = {name: NEW / timing.median for name, timing in timings.items()}
    table = Table("tokens a second", *(f"N {length:,}" for length in contexts), "last to first")
    met, found = True, []
    blank = Record("decoding_speed", "", {}, "tokens_per_second", 0.0, "1/s",
                   context=context("python benchmarks/decoding_speed.py" + " --quick" * given.quick, 0))  # fmt: skip
    for name in (*KERNELS, SOFTMAX):
        row = [pace[f"{name} {length}"] for length in contexts]
        table.add_row(name, *(f"{value:.0f}" for value in row), f"{100 * row[-1] / row[0]:.0f} %")
        met &= name == SOFTMAX or row[-1] >= BAR * row[0]
        found += [
            replace(blank, variant=name, setting={"context": length}, value=value)
            for length, value in zip(contexts, row, strict=True)
        ]
    Console(width=100).print(table)
    print(f"kernels at the longest context within 10 % of the shortest: {'yes' if met else 'no'}")
    if given.json:
        append(given.json, found)
    return 0 if met else 1


def decoder(name: str) -> GreenformerForCausalLM:
    torch.manual_seed(0)
    config = GreenformerConfig(
        vocab_size=256, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024,
        max_position_embeddings=CONTEXTS[-1] + NEW, attention=name, position="sinusoidal", pad_token_id=0,
    )  # fmt: skip
    return GreenformerForCausalLM(config).eval()


def continuation(model: GreenformerForCausalLM, length: int) -> Callable[[], object]:
    """What continues a context, whose states, or keys and values, are there already."""
    tokens = torch.randint(1, 256, (1, length))
    with torch.inference_mode():
        past = model(tokens[:, :-1], use_cache=True).past_key_values

    def call() -> object:
        # A copy of a cache of keys and values is part of softmax's time, but a small one beside reading it 32 times.
        own = deepcopy(past)
        return model.generate(tokens, past_key_values=own, max_new_tokens=NEW, do_sample=False)  # type: ignore[misc]

    return call


if __name__ == "__main__":
    sys.exit(main())
