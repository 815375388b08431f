"""How far `greenformers bench` is from itself: a grid measured twice, and once more beside a busy process.

    python benchmarks/bench_again.py [--quick] [--json results/bench_again.jsonl]

A cell agrees where its two medians are within the larger printed spread of the two. Beside a process that keeps the
same core busy, the spread should grow and the ratio to the dense network stay. Run it on one core (taskset -c 0), so
that the busy process cannot evade.
"""

import statistics
import subprocess
import sys
from dataclasses import replace

from _harness import Benchmark, Run, yes
from rich.table import Table

from greenformers.measure.bench import NAMES, How, bench
from greenformers.measure.grid import BASELINE, Network, cells
from greenformers.measure.record import Record

RUNS = ("first", "second", "loaded")
Key = tuple[str, int, str]

BENCHMARK = Benchmark(__file__, __doc__, quick="one length and 5 repeats in place of two and 15")


def main(run: Run) -> None:
    runs = {name: measured(run, loaded=name == "loaded") for name in RUNS}
    table = Table("", "N", "", *RUNS, "ratio to dense", "agree")
    agree = wider = 0
    for key, first in runs["first"].items():
        second, loaded = runs["second"][key], runs["loaded"][key]
        within = abs(first.value - second.value) <= max(spread(first), spread(second))
        agree, wider = agree + within, wider + (spread(loaded) > max(spread(first), spread(second)))
        times = (f"{record.value:.1f} ±{spread(record):.1f}" for record in (first, second, loaded))
        ratios = " ".join(f"{record.ratio:.2f}" for record in (first, second, loaded))
        table.add_row(key[0], str(key[1]), key[2], *times, ratios, yes(within))
    run.show(table)
    print(f"agree: {agree} of {len(runs['first'])}; spread wider under load: {wider}")
    for name in RUNS[1:]:
        print(f"ratio, {name} against first: moved by {100 * moved(runs['first'], runs[name]):.1f} % (median)")
    for name, records in runs.items():
        marked = [replace(record, setting={**record.setting, "run": name}) for record in records.values()]
        run.write(replace(record, benchmark="bench_again") for record in marked)


def measured(run: Run, *, loaded: bool) -> dict[Key, Record]:
    """Times of the cells of a small grid, in milliseconds."""
    network = Network(hidden=256, heads=4, feed_forward=1024)
    grid = cells(["lrt", "linformer", "lrt+linformer"], [128] if run.quick else [128, 1024], [64], network)
    how = How(tokens=2048, repeats=5 if run.quick else 15)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if loaded else None
    try:
        groups = list(bench(grid, network, how, run.about))
    finally:
        if busy:
            busy.kill()
    times = [
        record for group in groups for record in group if record.metric in (NAMES["inference"][0], NAMES["training"][0])
    ]
    return {(record.variant, record.setting["length"], record.metric): record for record in times}


def spread(record: Record) -> float:
    assert record.spread is not None
    return record.spread


def moved(first: dict[Key, Record], other: dict[Key, Record]) -> float:
    """By how much the ratios of two runs differ, relatively, in the median over cells other than the dense one."""
    pairs = [(first[key].ratio, other[key].ratio) for key in first if key[0] != BASELINE]
    return statistics.median(abs(b / a - 1) for a, b in pairs if a and b)


if __name__ == "__main__":
    BENCHMARK.run(main)
