"""One layer of d 768 at N 65,536: low rank with Linformer (r 64, k 128) against dense attention with SDPA, inference.

    python benchmarks/layer_65536.py [--quick] [--json results/layer_65536.jsonl]

Beside the speed-up stands its arithmetic limit, the ratio of FLOPs, and how time grows from N 4,096 on: the exponent e
of time ~ N^e. `--quick` measures N 1,024 and 8,192.
"""

import argparse
import sys
from dataclasses import replace
from math import log
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from greenformers.measure.costs import Subject
from greenformers.measure.flops import flops
from greenformers.measure.grid import BASELINE, Cell, Network, Stack, call_of
from greenformers.measure.latency import interleaved
from greenformers.measure.record import Record, append, context, with_ratios
from greenformers.model import GreenformerConfig
from greenformers.model.block import EncoderLayer
from greenformers.model.variant import slots

FAST, RANK, K = "lrt+linformer", 64, 128
SPEED_UP, EXPONENT = 60, 1.1


def subject(variant: str, length: int, device: str = "cpu") -> Subject:
    """One layer of a variant, and its forward pass on one sequence."""
    with torch.device(device):
        if variant == BASELINE:
            layer: torch.nn.Module = Stack(Network(layers=1), Cell(BASELINE, None, length))
        else:
            config = GreenformerConfig(
                hidden_size=768, num_attention_heads=12, intermediate_size=3072, num_hidden_layers=1,
                max_position_embeddings=length, hidden_dropout_prob=0.0,
                **slots(variant, rank=RANK, options={"linformer": {"k": K}}),
            )  # fmt: skip
            layer = EncoderLayer(config, 0)
        return Subject(layer.eval(), call_of(layer, torch.randn(1, length, 768)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter sequences")
    parser.add_argument("--json", type=Path, help="file the records are added to")
    given = parser.parse_args()
    short, long = (1024, 8192) if given.quick else (4096, 65_536)
    torch.manual_seed(0)
    about = context("python benchmarks/layer_65536.py" + " --quick" * given.quick, 0)
    records = []
    with torch.inference_mode():
        for length in (short, long):
            calls = {name: subject(name, length).forward for name in (BASELINE, FAST)}
            calls[FAST]()  # the dense one takes minutes at its length, and needs no warming
            times = interleaved(calls, repeats=3, warmup=int(length == short))
            blank = Record("layer_65536", "", {"length": length}, "latency", 0.0, "ms", context=about)
            for name, timing in times.items():
                spread = 1e3 * (timing.q3 - timing.q1)
                records.append(replace(blank, variant=name, value=1e3 * timing.median, spread=spread))
                count = flops(subject(name, length, "meta").forward) / 1e9
                records.append(
                    replace(blank, variant=name, metric="flops", value=count, unit="GFLOP", source="counted")
                )
    records = with_ratios(records, to=BASELINE)
    value = {(r.variant, r.setting["length"], r.metric): r for r in records}
    exponent = log(value[FAST, long, "latency"].value / value[FAST, short, "latency"].value) / log(long / short)
    table = Table("N", "variant", "latency, s", "IQR", "speed-up", "FLOP ratio")
    for record in records:
        if record.metric == "latency":
            length, name = record.setting["length"], record.variant
            table.add_row(
                str(length), name, f"{record.value / 1e3:.3f}", f"{(record.spread or 0) / 1e3:.3f}",
                f"{record.ratio:.1f}x", f"{value[name, length, 'flops'].ratio:.1f}x",
            )  # fmt: skip
    Console(width=100).print(table)
    speed_up = value[FAST, long, "latency"].ratio or 0
    print(
        f"speed-up at N {long}: {speed_up:.1f}x (bar {SPEED_UP}x); "
        f"growth from N {short}: N^{exponent:.2f} (bar {EXPONENT})"
    )
    if given.json:
        append(given.json, records)
    return 0 if given.quick or (speed_up >= SPEED_UP and exponent <= EXPONENT) else 1


if __name__ == "__main__":
    sys.exit(main())
