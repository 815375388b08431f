"""One layer of d 768 at N 65,536: low rank with Linformer (r 64, k 128) beside the faster dense one, in inference.

    python benchmarks/layer_65536.py [--quick] [--json results/layer_65536.jsonl]

Dense are transformers' BertLayer and torch.nn.TransformerEncoderLayer, both with SDPA; ratios are to the faster one of
each length. Beside the speed-up stands its arithmetic limit, the ratio of FLOPs, and how time grows from N 4,096 on:
the exponent e of time ~ N^e. `--quick` measures N 1,024 and 8,192.
"""

import torch
from _harness import Benchmark, Run, growth
from layer_speed import BY_TORCH, SDPA, BySdpa, bert, fastest, ours
from rich.table import Table

from greenformers.measure.costs import Subject
from greenformers.measure.flops import flops
from greenformers.measure.grid import call_of
from greenformers.measure.record import Record, with_ratios

FAST = "lrt+linformer"
SPEED_UP, EXPONENT = 95, 1.1

BENCHMARK = Benchmark(__file__, __doc__, quick="shorter sequences")


def main(run: Run) -> bool:
    short, long = (1024, 8192) if run.quick else (4096, 65_536)
    torch.manual_seed(0)
    records: list[Record] = []
    with torch.inference_mode():
        for length in (short, long):
            calls = {name: subject(name, length).forward for name in (SDPA, BY_TORCH, FAST)}
            calls[FAST]()  # dense ones take minutes at their length, and need no warming
            own = []
            for name, timing in run.times(calls, repeats=3, warmup=int(length == short)).items():
                count = flops(subject(name, length, "meta").forward) / 1e9
                own.append(run.record("latency", timing, name, {"length": length}))
                own.append(run.record("flops", count, name, {"length": length}, source="counted"))
            own = with_ratios(own, to=fastest(own, "latency"))
            run.write(own)
            records += own
    value = {(r.variant, r.setting["length"], r.metric): r for r in records}
    table = Table("N", "variant", "latency, s", "IQR", "speed-up", "FLOP ratio", "to")
    for (name, length, metric), record in value.items():
        if metric == "latency":
            table.add_row(
                str(length), name, f"{record.value / 1e3:.3f}", f"{(record.spread or 0) / 1e3:.3f}",
                f"{record.ratio:.1f}x", f"{value[name, length, 'flops'].ratio:.1f}x", record.to,
            )  # fmt: skip
    run.show(table)
    speed_up = value[FAST, long, "latency"].ratio or 0
    exponent = growth({length: value[FAST, length, "latency"].value for length in (short, long)})
    print(
        f"speed-up at N {long}: {speed_up:.1f}x (bar {SPEED_UP}x); "
        f"growth from N {short}: N^{exponent:.2f} (bar {EXPONENT})"
    )
    return run.quick or (speed_up >= SPEED_UP and exponent <= EXPONENT)


def subject(variant: str, length: int, device: str = "cpu") -> Subject:
    """One layer of a variant, and its forward pass on one sequence."""
    with torch.device(device):
        layer = bert("sdpa") if variant == SDPA else BySdpa() if variant == BY_TORCH else ours(variant, length)
        return Subject(layer.eval(), call_of(layer, torch.randn(1, length, 768)))


if __name__ == "__main__":
    BENCHMARK.run(main)
