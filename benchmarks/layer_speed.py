"""One encoder layer at full size (d 768, f 3072, 12 heads): low rank, Linformer and both beside the fastest dense one.

Ratios are to the fastest public dense layer of each setting: transformers' BertLayer with SDPA, or
torch.nn.TransformerEncoderLayer with SDPA or, as it comes, with its fused form in inference, whose scores are N x N in
memory: that one, and BertLayer with eager attention, end at N 4,096. Our own dense layer stands beside them. The
arithmetic limit of each speed-up is its FLOP ratio, printed beside it.

    python benchmarks/layer_speed.py [--quick] [--json results/layer_speed.jsonl]
"""

import torch
from _harness import Benchmark, Run
from rich.table import Table
from torch import Tensor, nn
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertLayer

from greenformers.measure.costs import Subject, costs
from greenformers.measure.record import Record, with_ratios
from greenformers.model import GreenformerConfig
from greenformers.model.block import EncoderLayer
from greenformers.model.variant import slots

D, HEADS, F, RANK, K = 768, 12, 3072, 64, 128
SDPA, BY_TORCH, FUSED = "transformers BERT, SDPA", "torch.nn layer, SDPA", "torch.nn layer"
DENSE = (SDPA, BY_TORCH, FUSED)
"""The public dense layers, of which the fastest is what the others are compared with."""
METRICS = {
    "inference": ("latency", "peak_memory_inference", "flops"),
    "training": ("train_step", "peak_memory_training", "flops_training"),
}
SETTINGS = [("inference", 128, 32), ("training", 128, 32), ("inference", 4096, 1), ("inference", 8192, 1)]
# The speed-up each variant is held to: (mode, length, variant) -> times the fastest of `DENSE`.
BARS = {
    ("inference", 128, "lrt"): 5.0,
    ("inference", 4096, "lrt+linformer"): 12.0,
    ("inference", 8192, "lrt+linformer"): 17.0,
    ("training", 128, "lrt"): 5.0,
}

BENCHMARK = Benchmark(__file__, __doc__, quick="fewer repeats; under two minutes on two cores")


def main(run: Run) -> bool:
    met = True
    for mode, length, batch in SETTINGS:
        records = measured(run, mode, length, batch)
        met &= show(run, records)
        run.write(records)
    print("every bar met" if met else "a bar was missed")
    return met


def ours(variant: str, length: int) -> nn.Module:
    """One layer of the house."""
    config = GreenformerConfig(
        hidden_size=D,
        num_attention_heads=HEADS,
        intermediate_size=F,
        num_hidden_layers=1,
        max_position_embeddings=length,
        hidden_dropout_prob=0.0,
        **slots(variant, rank=RANK, options={"linformer": {"k": K}}),
    )
    return EncoderLayer(config, 0)


class BySdpa(nn.Module):
    """The encoder layer of torch by SDPA in inference, too, where it would run its fused form."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch_layer()

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, d) to (B, N, d)."""
        was_enabled = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            out: Tensor = self.layer(x)
        finally:
            torch.backends.mha.set_fastpath_enabled(was_enabled)
        return out


def torch_layer() -> nn.Module:
    """The encoder layer of torch."""
    return nn.TransformerEncoderLayer(D, HEADS, F, 0.0, "gelu", batch_first=True)


def bert(attention: str) -> nn.Module:
    """One layer of transformers' BERT."""
    config = BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config._attn_implementation = attention
    return BertLayer(config)


def layers(mode: str, length: int, quick: bool) -> dict[str, nn.Module]:
    """Every layer of the comparison; peers whose attention is N x N in memory are left out where that takes minutes."""
    modules: dict[str, nn.Module] = {
        name: ours(name, length) for name in ("transformer", "lrt", "linformer", "lrt+linformer")
    }
    modules |= {SDPA: bert("sdpa"), BY_TORCH: BySdpa()}
    if length <= (128 if quick else 4096):
        modules["transformers BERT, eager"] = bert("eager")
        if mode == "inference":  # the fused form is of inference alone
            modules[FUSED] = torch_layer()
    return modules


def subject(layer: nn.Module, x: Tensor) -> Subject:
    """A layer, and its forward pass to a number."""

    def forward() -> Tensor:
        out = layer(x)
        return (out[0] if isinstance(out, tuple) else out).sum()

    return Subject(layer, forward)


def measured(run: Run, mode: str, length: int, batch: int) -> list[Record]:
    """Time, memory and FLOPs of every layer in one setting; the times are of one interleaved run."""
    torch.manual_seed(0)
    x = torch.randn(batch, length, D, requires_grad=mode == "training")
    setting = {"mode": mode, "length": length, "batch": batch, "hidden": D, "rank": RANK, "k": K}
    records = costs(
        {name: subject(layer, x) for name, layer in layers(mode, length, run.quick).items()}, METRICS[mode],
        benchmark=BENCHMARK.name, setting=setting, repeats=3 if run.quick else 15, about=run.about,
    )  # fmt: skip
    return with_ratios(records, to=fastest(records, METRICS[mode][0]))


def fastest(records: list[Record], time: str) -> str:
    """The public dense layer that takes least of a metric of time."""
    times = {record.variant: record.value for record in records if record.metric == time and record.variant in DENSE}
    return min(times, key=times.__getitem__)


def show(run: Run, records: list[Record]) -> bool:
    """Print one setting; True if every bar in it is met."""
    setting = records[0].setting
    time, memory, flops = METRICS[setting["mode"]]
    title = f"{setting['mode']}, N {setting['length']}, batch {setting['batch']}, beside {records[0].to}"
    table = Table("layer", "time, ms", "IQR", "speed-up", "limit (FLOP ratio)", "bar", "peak MiB", title=title)
    figure = {(record.variant, record.metric): record for record in records}
    met = True
    for name in dict.fromkeys(record.variant for record in records):
        bar = BARS.get((setting["mode"], setting["length"], name))
        timed = figure[name, time]
        met = met and (bar is None or (timed.ratio or 0) >= bar)
        table.add_row(
            name,
            f"{timed.value:.1f}",
            f"{timed.spread:.1f}",
            f"{timed.ratio:.2f}x",
            f"{figure[name, flops].ratio:.2f}x",
            f"{bar}x" if bar else "",
            f"{figure[name, memory].value:.0f}",
        )
    run.show(table)
    return met


if __name__ == "__main__":
    BENCHMARK.run(main)
