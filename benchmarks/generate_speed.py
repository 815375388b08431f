"""Speed of `generate`: full attention, low rank, kernels and windows beside Llama of the same size in transformers.

    python benchmarks/generate_speed.py [--only full] [--quick] [--json results/generate_speed.jsonl]

Decoders of 4 layers of 256 with random weights write 48 tokens behind 128 tokens, one text and 16 at once, and behind
4,096; all take turns. A turn is a whole call of `generate`, what is read of the prompt included. Bars: nowhere slower
than Llama; kernels and windows 1.3 times as fast with 16 texts, and 3 times behind 4,096 tokens.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from _harness import Benchmark, Option, Run, yes
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from greenformers.model import GreenformerConfig, GreenformerForCausalLM

NEW, LLAMA = 48, "llama"
PLACES = {"1 x 128": (1, 128), "16 x 128": (16, 128), "1 x 4,096": (1, 4096)}
SIZES: dict[str, Any] = {
    "vocab_size": 256, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024,
    "max_position_embeddings": 4096 + NEW, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "full": {},
    "low rank": {"rank": 64},
    "linear_transformer": {"attention": "linear_transformer"},
    "sliding_window": {"attention": "sliding_window", "attention_options": {"window": 64}},
}
BARS = {name: {"1 x 128": 1.0, "16 x 128": 1.3, "1 x 4,096": 3.0} for name in ("linear_transformer", "sliding_window")}

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="behind 128 tokens, 3 turns in place of 11",
    options=(Option("--only", "one of the variants", choices=VARIANTS),),
)


def main(run: Run) -> bool:
    names = [name for name in VARIANTS if run.given.only in (None, name)]
    places = [place for place, (_, length) in PLACES.items() if length < 4096 or not run.quick]
    torch.manual_seed(0)
    models: dict[str, PreTrainedModel] = {LLAMA: LlamaForCausalLM(LlamaConfig(**SIZES)).eval()}
    models |= {name: GreenformerForCausalLM(GreenformerConfig(**SIZES, **VARIANTS[name])).eval() for name in names}
    speed: dict[str, dict[str, float]] = {name: {} for name in names}
    pace: dict[str, dict[str, float]] = {name: {} for name in names}
    for place in places:
        calls = {name: continuation(model, *PLACES[place]) for name, model in models.items()}
        times = run.times(calls, repeats=11, quick=3)
        for name in names:
            speed[name][place] = times[LLAMA].median / times[name].median
            pace[name][place] = PLACES[place][0] * NEW / times[name].median
    table = Table("tokens a second to Llama's", *places, title=f"generate, {NEW} tokens")
    met, records = True, []
    for name, row in speed.items():
        table.add_row(name, *(f"{ratio:.2f}x" for ratio in row.values()))
        for place, ratio in row.items():
            met &= ratio >= BARS.get(name, {}).get(place, 1.0)
            batch, length = PLACES[place]
            setting = {"batch": batch, "context": length, "new": NEW}
            records.append(run.record("tokens_per_second", pace[name][place], name, setting, ratio=ratio, to=LLAMA))
    run.show(table)
    print(f"nowhere below the bars: {yes(met)}")
    run.write(records)
    return met


def continuation(model: PreTrainedModel, batch: int, length: int) -> Callable[[], object]:
    """What writes behind texts of random tokens."""
    tokens = torch.randint(3, 256, (batch, length))
    given: dict[str, Any] = {"attention_mask": torch.ones_like(tokens), "max_new_tokens": NEW, "min_new_tokens": NEW}
    return lambda: cast(Any, model).generate(tokens, do_sample=False, **given)


if __name__ == "__main__":
    BENCHMARK.run(main)
