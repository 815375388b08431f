"""Experts of a layer of Mixtral's class, low rank, int8, both, and in 4 bits, beside the dense ones.

    python benchmarks/expert_speed.py [--quick] [--json results/expert_speed.jsonl]

H = 512, I = 1024, 8 experts of which 2 for each token, with random weights, on one thread; low rank keeps half of the
weights. 512 tokens, 16, and one, as in writing; all take turns. The dense ones compute by a loop over experts ("eager")
and by torch's grouped product, which transformers takes by default. Bar: low rank and int8 nowhere slower than either,
and 4 bits, which are unpacked where many tokens are read, not at one token.
"""

from collections.abc import Callable
from typing import Any

import torch
from _harness import Benchmark, Run, yes
from rich.table import Table
from torch import Tensor, nn
from transformers import MixtralConfig, MixtralModel

from greenformers.changes import Bits, Change, Int8, LowRank
from greenformers.changes._contract import Given

WIDTH, INNER, EXPERTS, CHOSEN = 512, 1024, 8, 2
TOKENS = {"512 tokens": 512, "16 tokens": 16, "1 token": 1}
HALF = LowRank(keep=0.5, uniform=True, select=("experts",))
FEW = "4 bits"
VARIANTS: dict[str, list[Change]] = {
    "low rank 0.5": [HALF], "int8": [Int8()], "both": [HALF, Int8()], FEW: [Bits(4, by="rounding")],
}  # fmt: skip
EAGER, GROUPED = "eager", "grouped_mm"

BENCHMARK = Benchmark(__file__, __doc__, quick="512 tokens, 3 turns in place of 21", threads=1)


def main(run: Run) -> bool:
    layers = {name: experts(name, []) for name in (EAGER, GROUPED)}
    layers |= {name: experts(EAGER, changes) for name, changes in VARIANTS.items()}
    places = [place for place in TOKENS if place == "512 tokens" or not run.quick]
    table = Table("ms, and times as fast as eager", *places, title=f"{EXPERTS} experts, {WIDTH} x {INNER}")
    rows: dict[str, list[str]] = {name: [] for name in layers}
    met, records = True, []
    for place in places:
        given = routed(TOKENS[place])
        calls = {name: call(layer, given) for name, layer in layers.items()}
        with torch.inference_mode():
            times = run.times(calls, repeats=21, quick=3)
        fastest = min(times[EAGER].median, times[GROUPED].median)
        for name, timing in times.items():
            ratio = times[EAGER].median / timing.median
            rows[name].append(f"{1e3 * timing.median:.2f} ({ratio:.2f}x)")
            met &= name in (EAGER, GROUPED) or timing.median <= fastest or (name == FEW and TOKENS[place] > 1)
            setting = {"tokens": TOKENS[place], "width": WIDTH, "inner": INNER, "experts": EXPERTS}
            records.append(run.record("latency", timing, name, setting, ratio=ratio, to=EAGER))
    for name, cells in rows.items():
        table.add_row(name, *cells)
    run.show(table)
    print(f"nowhere slower than dense: {yes(met)}")
    run.write(records)
    return met or run.quick


def experts(implementation: str, changes: list[Change]) -> nn.Module:
    """The experts of one layer, always the same weights, changed."""
    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=8, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=1, num_local_experts=EXPERTS,
        num_experts_per_tok=CHOSEN,
    )  # fmt: skip
    model = MixtralModel(config).eval()
    model.set_experts_implementation(implementation)
    for change in changes:
        change.apply(model, Given())
    layer: Any = model.layers[0]
    block: nn.Module = layer.mlp.experts
    return block


def routed(tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, the experts chosen for each, and the weights of those."""
    chosen = torch.stack([torch.randperm(EXPERTS)[:CHOSEN] for _ in range(tokens)])
    return torch.randn(tokens, WIDTH), chosen, torch.rand(tokens, CHOSEN)


def call(layer: nn.Module, given: tuple[Tensor, Tensor, Tensor]) -> Callable[[], object]:
    """A pass of the experts."""
    return lambda: layer(*given)


if __name__ == "__main__":
    BENCHMARK.run(main)
