"""What a deep stack keeps for its backward pass: plain, recomputed, reversible, and with chunked feed-forward.

    python benchmarks/reversible_memory.py [--quick] [--json results/reversible_memory.jsonl]

24 layers, d 256, f 1024, 4 heads, N 2,048, batch 1, dropout 0. Peak bytes of a forward and backward pass, without
weights and gradients; steps interleaved, medians; gradients beside those of a stack of the same weights that keeps
everything (Kitaev 2020, arXiv:2001.04451, section 3).
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from greenformers.measure.latency import interleaved
from greenformers.measure.memory import peak_memory
from greenformers.measure.record import METRICS, Record, append, context, with_ratios
from greenformers.model import GreenformerConfig
from greenformers.model.encoder import GreenformerModel

BASE = "plain"
KINDS: dict[str, dict[str, Any]] = {
    BASE: {"residual": "pre"},
    "recomputed": {"residual": "pre"},
    "chunked": {"residual": "pre", "feed_forward": "chunked"},
    "reversible": {"residual": "reversible"},
    "reversible, chunked": {"residual": "reversible", "feed_forward": "chunked"},
}
MIB = 2**20


def network(kind: str, layers: int, length: int) -> GreenformerModel:
    """The same weights for all kinds."""
    torch.manual_seed(0)
    config = GreenformerConfig(
        vocab_size=100, hidden_size=256, num_attention_heads=4, intermediate_size=1024, num_hidden_layers=layers,
        max_position_embeddings=length, hidden_dropout_prob=0.0, **KINDS[kind],
    )  # fmt: skip
    model = GreenformerModel(config).train()
    if kind == "recomputed":
        model.activation_checkpointing_enable()
    return model


def both_streams(model: GreenformerModel, ids: Tensor) -> Tensor:
    """The reversible network with every activation kept."""
    first = second = model.embedding(ids)
    for layer in cast(Any, model.layers):
        first = first + layer.attention.output(layer.attention.mix(layer.attention_norm(second), None)[0])
        second = second + layer.feed_forward(layer.feed_forward_norm(first))
    return model.final_norm((first + second) / 2)


def off(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Relative distance of all gradients together: of a key's bias it is 0, and what is computed is rounding."""
    far = sum(float((one - other).square().sum()) for one, other in zip(found, expected, strict=True))
    return (far / sum(float(other.square().sum()) for other in expected)) ** 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="6 layers, N 256")
    parser.add_argument("--json", type=Path, help="file the records are added to")
    given = parser.parse_args()
    layers, length = (6, 256) if given.quick else (24, 2048)
    ids = torch.randint(100, (1, length), generator=torch.Generator().manual_seed(0))
    models = {kind: network(kind, layers, length) for kind in KINDS}

    def step(model: GreenformerModel) -> Callable[[], None]:
        def run() -> None:
            model(ids).last_hidden_state.square().mean().backward()
            model.zero_grad(set_to_none=True)

        return run

    setting = {"layers": layers, "length": length, "hidden": 256}
    about = context("python benchmarks/reversible_memory.py" + " --quick" * given.quick, 0)
    records = []
    for kind, model in models.items():
        run = step(model)
        run()
        weights = sum(one.numel() * one.element_size() for one in model.parameters())
        peak = (peak_memory(run) - weights) / MIB
        records.append(Record("reversible_memory", kind, setting, "peak_memory_training", peak, "MiB", context=about))
    timings = interleaved({kind: step(model) for kind, model in models.items()}, repeats=3, warmup=0)
    for kind, timing in timings.items():
        unit = METRICS["train_step"].unit
        records.append(
            Record("reversible_memory", kind, setting, "train_step", 1e3 * timing.median, unit, context=about)
        )
    rated = with_ratios(records, BASE)
    table = Table("stack", "peak (MiB)", "less", "step (ms)", "times as fast", "gradients differ by")
    for kind, model in models.items():
        own = {record.metric: record for record in rated if record.variant == kind}
        reference = both_streams(model, ids) if "reversible" in kind else models[BASE](ids).last_hidden_state
        leaves = list((model if "reversible" in kind else models[BASE]).layers.parameters())
        found = torch.autograd.grad(model(ids).last_hidden_state.square().mean(), list(model.layers.parameters()))
        expected = torch.autograd.grad(reference.square().mean(), leaves)
        memory, time = own["peak_memory_training"], own["train_step"]
        table.add_row(kind, f"{memory.value:.1f}", f"{memory.ratio:.2f}x", f"{time.value:.0f}", f"{time.ratio:.2f}x",
                      f"{off(found, expected):.1e}")  # fmt: skip
    Console(width=120).print(table)
    if given.json:
        append(given.json, rated)


if __name__ == "__main__":
    main()
