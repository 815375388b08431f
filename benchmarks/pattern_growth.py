"""How the time of each pattern grows with the length, all lengths by turns in one run.

    python benchmarks/pattern_growth.py [--quick] [--json results/pattern_growth.jsonl]

The mechanisms and sizes of pattern_speed.py, N 1,024 to 32,768, two threads. There the lengths of a mechanism are
minutes apart, and what a shared machine does meanwhile is taken for growth. Bars: N^1.1 between the ends, N^1.6 for the
two patterns of the Sparse Transformer.
"""

from collections.abc import Callable
from itertools import product

import torch
from _harness import Benchmark, Run, growth
from attention_speed import DIM, HEADS, title
from pattern_speed import CONTESTS, LENGTHS, THREADS
from rich.table import Table

from greenformers.attention import Attention, Shape, build
from greenformers.measure.record import Record

BENCHMARK = Benchmark(__file__, __doc__, quick="three lengths and 3 turns", threads=THREADS)


def main(run: Run) -> bool:
    lengths = LENGTHS[:3] if run.quick else LENGTHS
    table = Table("ms", "", *(f"N {length:,}" for length in lengths), "exponent", "bar")
    records, missed = list[Record](), 0
    for training, contest in product((False, True), CONTESTS):
        for name, options in contest.ours.items():
            # As much work in a turn for short lengths as for long ones.
            turns = {length: max(1, lengths[-1] // 4 // length) for length in lengths}
            calls = {
                str(length): call(build(name, Shape(HEADS, DIM, length), **options), length, training, count)
                for length, count in turns.items()
            }
            timings = run.times(calls, repeats=5, quick=3)
            times = {length: 1000 * timings[str(length)].median / count for length, count in turns.items()}
            missed += growth(times) > contest.growth
            figures = (f"{time:.1f}" for time in times.values())
            table.add_row(name, title(training), *figures, f"{growth(times):.2f}", f"{contest.growth}")
            for length, time in times.items():
                setting = {"length": length, "mode": title(training), "threads": run.given.threads}
                records.append(run.record("latency", time, name, setting))
    run.show(table)
    print(f"bars missed: {missed}")
    run.write(records)
    return not missed


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


if __name__ == "__main__":
    BENCHMARK.run(main)
