"""How the time of each pattern grows with the length, all lengths by turns in one run.

    python benchmarks/pattern_growth.py [--quick] [--json results/pattern_growth.jsonl]

The mechanisms and sizes of pattern_speed.py, N 1,024 to 32,768, two threads. There the lengths of a mechanism are
minutes apart, and what a shared machine does meanwhile is taken for growth. Bars: N^1.1 between the ends, N^1.6 for the
two patterns of the Sparse Transformer.
"""

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from attention_speed import DIM, HEADS, title
from pattern_speed import CONTESTS, LENGTHS, THREADS
from rich.console import Console
from rich.table import Table

from greenformers.attention import Attention, Shape, build
from greenformers.measure.latency import interleaved
from greenformers.measure.record import Record, append, context


def call(mechanism: Attention, length: int, training: bool, repeats: int) -> Callable[[], None]:
    """So many passes over one sequence."""
    q, k, v = (torch.randn(1, HEADS, length, DIM, requires_grad=training) for _ in range(3))

    def passes() -> None:
        for _ in range(repeats):
            if training:
                mechanism(q, k, v).sum().backward()
                q.grad = k.grad = v.grad = None
            else:
                with torch.inference_mode():
                    mechanism(q, k, v)

    return passes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three lengths and 3 turns")
    parser.add_argument("--json", type=Path, help="file the records are added to")
    asked = parser.parse_args()
    torch.set_num_threads(THREADS)
    lengths = LENGTHS[:3] if asked.quick else LENGTHS
    about = context("python benchmarks/pattern_growth.py" + " --quick" * asked.quick, seed=0)
    table = Table("ms", "", *(f"N {length:,}" for length in lengths), "exponent", "bar")
    records, missed = list[Record](), 0
    for training in (False, True):
        for contest in CONTESTS:
            for name, options in contest.ours.items():
                # As much work in a turn for short lengths as for long ones.
                repeats = {length: max(1, lengths[-1] // 4 // length) for length in lengths}
                calls = {
                    str(length): call(build(name, Shape(HEADS, DIM, length), **options), length, training, count)
                    for length, count in repeats.items()
                }
                timings = interleaved(calls, repeats=3 if asked.quick else 5, warmup=1)
                times = {length: 1000 * timings[str(length)].median / count for length, count in repeats.items()}
                growth = math.log(times[lengths[-1]] / times[lengths[0]]) / math.log(lengths[-1] / lengths[0])
                missed += growth > contest.growth
                figures = (f"{time:.1f}" for time in times.values())
                table.add_row(name, title(training), *figures, f"{growth:.2f}", f"{contest.growth}")
                for length, time in times.items():
                    setting = {"length": length, "mode": title(training), "threads": THREADS}
                    records.append(Record("pattern_growth", name, setting, "latency", time, "ms", context=about))
    Console(width=130).print(table)
    print(f"bars missed: {missed}")
    if asked.json:
        append(asked.json, records)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
