"""What a deep stack keeps for its backward pass: plain, recomputed, reversible, with chunked feed-forward.

    python benchmarks/reversible_memory.py [--quick] [--json results/reversible_memory.jsonl]

24 layers, d 256, f 1024, 4 heads, N 2,048, batch 1, dropout 0. Peak bytes of a forward and backward pass above the
weights, with the gradients, which are made as activations are released, and above weights and gradients where these are
there before, as in accumulation; steps interleaved, medians; gradients beside
those of a stack of the same weights that keeps everything (Kitaev 2020, arXiv:2001.04451, section 3). "segments"
recomputes sqrt(l) layers at a time, of which only the input is kept (Chen 2016, arXiv:1604.06174, section 4.1), which
no setting of training does; "recomputed", that of `--recompute`, does so with every layer.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from _harness import Benchmark, Run
from rich.table import Table
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from greenformers.measure.memory import peak_memory
from greenformers.measure.record import with_ratios
from greenformers.model import GreenformerConfig
from greenformers.model.encoder import GreenformerModel

BASE = "plain"
KINDS: dict[str, dict[str, Any]] = {
    BASE: {"residual": "pre"},
    "recomputed": {"residual": "pre"},
    "segments": {"residual": "pre"},
    "chunked": {"residual": "pre", "feed_forward": "chunked"},
    "reversible": {"residual": "reversible"},
    "reversible, chunked": {"residual": "reversible", "feed_forward": "chunked"},
}
MIB = 2**20

BENCHMARK = Benchmark(__file__, __doc__, quick="6 layers, N 256")


def main(run: Run) -> None:
    layers, length = (6, 256) if run.quick else (24, 2048)
    ids = torch.randint(100, (1, length), generator=torch.Generator().manual_seed(0))
    models = {kind: network(kind, layers, length) for kind in KINDS}
    steps = {kind: step(partial(states, kind, model, ids), model) for kind, model in models.items()}
    setting = {"layers": layers, "length": length, "hidden": 256}
    records = []
    for kind in models:
        steps[kind]()
        records.append(run.record("peak_memory_training", peak_memory(steps[kind]) / MIB, kind, setting))
        backward = added_up(partial(states, kind, models[kind], ids))
        backward()
        held = {**setting, "gradients": "there before"}
        records.append(run.record("peak_memory_training", peak_memory(backward) / MIB, kind, held))
        models[kind].zero_grad(set_to_none=True)
    for kind, timing in run.times(steps, repeats=3, warmup=0).items():
        records.append(run.record("train_step", timing, kind, setting))
    records = with_ratios(records, BASE)
    table = Table(
        "stack", "peak (MiB)", "less", "added up", "less", "step (ms)", "times as fast", "gradients differ by"
    )
    for kind, model in models.items():
        memory, added, time = (record for record in records if record.variant == kind)
        table.add_row(
            kind, f"{memory.value:.1f}", f"{memory.ratio:.2f}x", f"{added.value:.1f}", f"{added.ratio:.2f}x",
            f"{time.value:.0f}", f"{time.ratio:.2f}x", f"{difference(kind, model, models[BASE], ids):.1e}",
        )  # fmt: skip
    run.show(table)
    run.write(records)


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


def states(kind: str, model: GreenformerModel, ids: Tensor) -> Tensor:
    """The last hidden states of a stack."""
    if kind != "segments":
        output: Tensor = model(ids).last_hidden_state
        return output
    x, layers = model.embedding(ids), list(model.layers)
    size = round(len(layers) ** 0.5)
    for first in range(0, len(layers), size):
        x = checkpoint(nn.Sequential(*layers[first : first + size]), x, use_reentrant=False)
    return model.final_norm(x)


def added_up(forward: Callable[[], Tensor]) -> Callable[[], None]:
    """A forward and a backward pass, whose gradients stay."""
    return lambda: forward().square().mean().backward()


def step(forward: Callable[[], Tensor], model: GreenformerModel) -> Callable[[], None]:
    """A forward and a backward pass."""
    backward = added_up(forward)

    def both() -> None:
        backward()
        model.zero_grad(set_to_none=True)

    return both


def difference(kind: str, model: GreenformerModel, base: GreenformerModel, ids: Tensor) -> float:
    """By how much the gradients of a stack differ from those of the same weights that keep every activation."""
    reversible = "reversible" in kind
    reference = both_streams(model, ids) if reversible else base(ids).last_hidden_state
    leaves = list((model if reversible else base).layers.parameters())
    own = torch.autograd.grad(states(kind, model, ids).square().mean(), list(model.layers.parameters()))
    return off(own, torch.autograd.grad(reference.square().mean(), leaves))


def off(gradients: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Relative distance of all gradients together: of a key's bias it is 0, and what is computed is rounding."""
    far = sum(float((gradient - other).square().sum()) for gradient, other in zip(gradients, expected, strict=True))
    return (far / sum(float(other.square().sum()) for other in expected)) ** 0.5


if __name__ == "__main__":
    BENCHMARK.run(main)
