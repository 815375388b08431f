"""Scoring a long text: segments read with Transformer-XL's memory beside a window recomputed for every token.

    python benchmarks/segment_evaluation.py [--quick] [--json results/segment_evaluation.jsonl]

3 layers of d 256, f 1024, 4 heads, 256 symbols, batch 1, float32. With memory: 8,192 tokens in segments of L, each read
on top of the L positions before it. The window: each token is scored from the L before it, all of them computed again
(Al-Rfou 2018, arXiv:1808.04444); the same network, and one of full attention (SDPA) with sinusoidal positions; and,
which needs all of the text to be there, 16 windows at once. Weights are untrained, on which time does not depend.

Of windows 12 a round are timed, or 16 at once, and extrapolated by the token: all cost the same. With memory the whole
text is read, its first segment, which has none, included. What is compared sees at least as much with memory: L + 1 to
2 L positions a layer, where a window has L. To be expected: L positions a token in place of one, which has up to twice
the keys, so about L / 2 to L times. Dai 2019, arXiv:1901.02860 ("Evaluation speed"), has up to 1,800 times on a GPU,
at L 3,800. Bar: at the longest L 50 times faster than both windows, one at a time.
"""

from collections.abc import Callable

import torch
from _harness import Benchmark, Run, yes
from rich.table import Table
from torch import Tensor

from greenformers.measure.record import Record, with_ratios
from greenformers.model import GreenformerConfig, GreenformerForCausalLM
from greenformers.model.memory import SegmentMemory

LENGTHS, QUICK, TEXT, SYMBOLS = (128, 512, 1024), (64,), 8192, 256
WINDOWS, AT_ONCE, BAR = 12, 16, 50.0
BASE, SAME, FULL = "memory", "window", "window, full attention"

BENCHMARK = Benchmark(__file__, __doc__, quick=f"L {QUICK[0]} alone")


def main(run: Run) -> bool:
    lengths = QUICK if run.quick else LENGTHS
    rates = {length: {record.variant: record for record in measured(run, length)} for length in lengths}
    table = Table("ms a token", *(f"L {length:,}" for length in lengths), title="in brackets: memory is faster by")
    for variant in rates[lengths[0]]:
        pairs = [(rates[length][variant].value, rates[length][BASE].value) for length in lengths]
        cells = [f"{1e3 / rate:.3f}" + (f" ({base / rate:,.0f}x)" if variant != BASE else "") for rate, base in pairs]
        table.add_row(variant, *cells)
    run.show(table)
    last = rates[lengths[-1]]
    met = all(last[BASE].value >= BAR * last[name].value for name in (SAME, FULL))
    print(f"at L {lengths[-1]:,} {BAR:.0f} times faster than windows one at a time, or more: {yes(met)}")
    run.write(record for of_length in rates.values() for record in of_length.values())
    return met


def network(attention: str, length: int) -> GreenformerForCausalLM:
    torch.manual_seed(0)
    config = GreenformerConfig(
        vocab_size=SYMBOLS, hidden_size=256, num_attention_heads=4, intermediate_size=1024, num_hidden_layers=3,
        max_position_embeddings=length, hidden_dropout_prob=0.0, attention=attention, position="sinusoidal",
    )  # fmt: skip
    return GreenformerForCausalLM(config).eval()


def in_segments(model: GreenformerForCausalLM, text: Tensor, length: int) -> Callable[[], object]:
    """Scores of every token, segment by segment."""

    def call() -> None:
        memory = SegmentMemory(length)
        for part in text.split(length, 1):
            memory = model(part, memory=memory).memory

    return call


def in_windows(model: GreenformerForCausalLM, windows: Tensor, batch: int) -> Callable[[], object]:
    """Scores of the token after each window (n, length), some windows at once."""

    def call() -> None:
        for part in windows.split(batch):
            model(part, logits_to_keep=1)

    return call


def measured(run: Run, length: int) -> list[Record]:
    """Tokens a second of all sides, with their ratios to memory."""
    text = torch.randint(SYMBOLS, (1, TEXT), generator=torch.Generator().manual_seed(0))
    windows = text[0].unfold(0, length, 1)  # (TEXT - length + 1, length)
    own = network("transformer_xl", length)
    calls, tokens = {BASE: in_segments(own, text, length)}, {BASE: TEXT}
    for name, model in ((SAME, own), (FULL, network("full", length))):
        for batch, count in ((1, WINDOWS), (AT_ONCE, AT_ONCE)):
            variant = name if batch == 1 else f"{name}, {batch} at once"
            calls[variant], tokens[variant] = in_windows(model, windows[:count], batch), count
    with torch.inference_mode():
        timings = run.times(calls, repeats=3)
    records = []
    for variant, timing in timings.items():
        low, rate, high = (tokens[variant] / seconds for seconds in (timing.q3, timing.median, timing.q1))
        setting = {"length": length, "text": TEXT}
        records.append(run.record("tokens_per_second", rate, variant, setting, spread=high - low))
    return with_ratios(records, BASE)


if __name__ == "__main__":
    BENCHMARK.run(main)
