"""Adaptive span on a local task: what spans it learns, and how fast the mechanism is with them.

    python benchmarks/learned_span.py [--quick] [--json results/learned_span.jsonl]

To be told: the token three places back, of 64 symbols, over sequences of 1,024. All heads begin with the whole
sequence as their span; the loss on spans (Sukhbaatar 2019, arXiv:1905.07799, section 3) takes off what the task does
not need. Timed is the mechanism at 4,096 positions, with the spans of before and of after and beside dense attention,
interleaved, projections left out. Bar: faster than before.
"""

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from _harness import Benchmark, Run, yes
from rich.progress import track
from rich.table import Table
from torch import Tensor

from greenformers.attention import Shape, build
from greenformers.attention.adaptive_span import AdaptiveSpan
from greenformers.measure.latency import Timing
from greenformers.measure.record import with_ratios
from greenformers.model import GreenformerConfig, GreenformerForCausalLM

HEADS, DIM, SYMBOLS, BACK, RAMP = 4, 32, 64, 3, 32

BENCHMARK = Benchmark(__file__, __doc__, quick="sequences of 256, timed at 2,048, 3 repeats")


def main(run: Run) -> bool:
    length, at = (256, 2048) if run.quick else (1024, 4096)
    mechanism, right = learned(length, 150)
    spans = [round(span) for span in (mechanism.z.detach() * mechanism.span).tolist()]
    print(f"told right: {100 * right:.1f} %; spans of the heads, of {length}: {spans}")
    table, met = Table("", "inference, ms", "training, ms", title=f"the mechanism at {at:,} positions"), True
    cells: dict[str, list[str]] = {}
    records = []
    for mode in ("inference", "training"):
        times = timed(run, mechanism, at, mode == "training")
        setting = {"learned_at": length, "length": at, "mode": mode}
        own = with_ratios([run.record("latency", timing, name, setting) for name, timing in times.items()], "after")
        records += own
        value = {record.variant: record.value for record in own}
        met &= value["after"] < value["before"]
        for name, ms in value.items():
            cells.setdefault(name, []).append(f"{ms:.1f} ({ms / value['after']:.2f}x)")
    for name, row in cells.items():
        table.add_row(name, *row)
    run.show(table)
    print(f"faster than before: {yes(met)}")
    run.write(records)
    return met


def learned(length: int, steps: int) -> tuple[AdaptiveSpan, float]:
    """The mechanism of one layer after training, and the share of tokens told right."""
    torch.manual_seed(0)
    config = GreenformerConfig(
        vocab_size=SYMBOLS, hidden_size=HEADS * DIM, num_attention_heads=HEADS, intermediate_size=4 * HEADS * DIM,
        num_hidden_layers=1, max_position_embeddings=length, attention="adaptive_span", hidden_dropout_prob=0.0,
        attention_options={"init": 1.0, "penalty": 1e-3, "ramp": RAMP}, initializer_range=0.1, residual="pre",
    )  # fmt: skip
    model = GreenformerForCausalLM(config).train()
    mechanism = cast(AdaptiveSpan, model.decoder.layers[0].attention.mechanism)
    named = dict(model.named_parameters())
    spans = [parameter for name, parameter in named.items() if name.endswith(".z")]
    others = [parameter for name, parameter in named.items() if not name.endswith(".z")]
    optimizer = torch.optim.AdamW([{"params": others, "lr": 5e-3}, {"params": spans, "lr": 2e-2}])
    generator = torch.Generator().manual_seed(0)
    right = 0.0
    for _ in track(range(steps), "training"):
        ids = torch.randint(SYMBOLS, (4, length), generator=generator)
        out = model.decoder(ids)
        logits = model.head(out, None).logits[:, BACK:]
        targets = ids[:, :-BACK]
        (F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + out.auxiliary_loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        mechanism.update_()
        right = float((logits.argmax(-1) == targets).double().mean())
    return mechanism, right


def timed(run: Run, mechanism: AdaptiveSpan, length: int, training: bool) -> dict[str, Timing]:
    """Times with spans of `length` times z, of before, after and dense attention."""
    z = {"before": torch.ones(HEADS), "after": mechanism.z.detach() * mechanism.span / length}
    shape = Shape(HEADS, DIM, length, causal=True)
    sides: dict[str, Callable[..., Tensor]] = {
        "sdpa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    }
    for name, spans in z.items():
        module = build("adaptive_span", shape, ramp=RAMP).train(training)
        with torch.no_grad():
            cast(AdaptiveSpan, module).z.copy_(spans)
        sides[name] = module
    given = torch.randn(3, 1, HEADS, length, DIM, generator=torch.Generator().manual_seed(0)).requires_grad_(training)

    def call(side: Callable[..., Tensor]) -> Callable[[], object]:
        def both() -> None:
            out = side(*given)
            out.backward(torch.ones_like(out))
            given.grad = None

        def forward() -> Tensor:
            with torch.inference_mode():
                return side(*given)

        return both if training else forward

    return run.times({name: call(side) for name, side in sides.items()}, repeats=15, quick=3)


if __name__ == "__main__":
    BENCHMARK.run(main)
