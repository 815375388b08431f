"""Tokens a second of `generate` at contexts of 1K to 64K: kernel attention with its state, softmax with its cache.

    python benchmarks/decoding_speed.py [--quick] [--json results/decoding_speed.jsonl]

A decoder of 4 layers of 256 with random weights continues each context by 32 tokens at a time; variants and contexts
take turns. Bar: at 64K within 10 % of the pace at 1K for both kernels.
"""

from collections.abc import Callable
from copy import deepcopy

import torch
from _harness import Benchmark, Run, yes
from rich.table import Table

from greenformers.model import GreenformerConfig, GreenformerForCausalLM

KERNELS, SOFTMAX = ("linear_transformer", "performer"), "full"
CONTEXTS, NEW, BAR = (1024, 4096, 16384, 65536), 32, 0.9

BENCHMARK = Benchmark(__file__, __doc__, quick="up to 4K, 5 turns in place of 15")


def main(run: Run) -> bool:
    contexts = CONTEXTS[:2] if run.quick else CONTEXTS
    calls = {}
    for name in (*KERNELS, SOFTMAX):
        model = decoder(name)
        for length in contexts:
            calls[f"{name} {length}"] = continuation(model, length)
    pace = {name: NEW / timing.median for name, timing in run.times(calls, repeats=15, quick=5).items()}
    table = Table("tokens a second", *(f"N {length:,}" for length in contexts), "last to first")
    met, records = True, []
    for name in (*KERNELS, SOFTMAX):
        row = {length: pace[f"{name} {length}"] for length in contexts}
        share = row[contexts[-1]] / row[contexts[0]]
        table.add_row(name, *(f"{value:.0f}" for value in row.values()), f"{100 * share:.0f} %")
        met &= name == SOFTMAX or share >= BAR
        records += [run.record("tokens_per_second", value, name, {"context": length}) for length, value in row.items()]
    run.show(table)
    print(f"kernels at the longest context within 10 % of the shortest: {yes(met)}")
    run.write(records)
    return met


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
    BENCHMARK.run(main)
