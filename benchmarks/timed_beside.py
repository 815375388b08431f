"""Beside what a recipe is timed: how far a speed-up is from itself, minutes later, on a machine that others use too.

    python benchmarks/timed_beside.py [--quick] [--json results/timed_beside.jsonl]

MiniLM-L6, its recipes and forms in bf16 and int8 run in turns of eight seconds, with ten seconds between two turns; of
each turn the ratio of the medians of two of them. The spread is the standard deviation of these ratios over the turns.

Bar: of recipes in bf16, the ratio to the model in bf16 spreads at most half as far as that to the model as it is.
"""

import copy
import time
from itertools import product
from statistics import mean, median, pstdev

import torch
from _harness import Benchmark, Option, Run, data, yes
from compress_minilm import LENGTH, minilm, sentences
from rich.table import Table

from greenformers import compress
from greenformers.changes import Bfloat16, Change, Int8, Layers, Prune
from greenformers.compress.side_by_side import subjects_of
from greenformers.data._texts import batches
from greenformers.measure.latency import interleaved

DENSE, BF16 = "as it is", "bf16"
RECIPES: dict[str, list[Change]] = {
    BF16: [Bfloat16()], "4 layers, bf16": [Layers(4), Bfloat16()],
    "4 layers, prune 0.6, bf16": [Layers(4), Prune(0.6), Bfloat16()], "int8": [Int8()], "4 layers": [Layers(4)],
}  # fmt: skip
SECONDS, PAUSE, BATCH, CALIBRATION = 8.0, 10.0, 8, 256

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="two turns of a second; the figures mean nothing",
    options=(data("--texts", "wikitext2", "WikiText-2"), Option("--turns", "turns", int, 14)),
    threads=2,
)


def main(run: Run) -> bool:
    dense, tokenizer = minilm(run)
    calibration = batches(sentences(run.given.texts, CALIBRATION), tokenizer, "encoder", LENGTH, 64)
    models = {DENSE: dense}
    for name, changes in RECIPES.items():
        models[name] = copy.deepcopy(dense)
        compress(models[name], changes, calibration=calibration)
    calls = {name: subject.forward for name, subject in subjects_of(models, LENGTH, BATCH).items()}
    turns = []
    for number in range(2 if run.quick else run.given.turns):
        if number and not run.quick:
            time.sleep(PAUSE)
        with torch.inference_mode():
            times = interleaved(calls, repeats=9, warmup=2, min_time=1.0 if run.quick else SECONDS)
        turns.append({name: median(timing.samples) for name, timing in times.items()})
        print(", ".join(f"{name} {1000 * value:.1f} ms" for name, value in turns[-1].items()), flush=True)
    table = Table("recipe", "beside", "times as fast", "least", "most", "spread, %")
    records, spreads = [], dict[tuple[str, str], float]()
    for name, beside in product(RECIPES, (DENSE, BF16)):
        if name == beside:
            continue
        ratios = [turn[beside] / turn[name] for turn in turns]
        spreads[name, beside] = 100 * pstdev(ratios) / mean(ratios)
        table.add_row(
            name, beside, f"{mean(ratios):.2f}", f"{min(ratios):.2f}", f"{max(ratios):.2f}",
            f"{spreads[name, beside]:.1f}",
        )  # fmt: skip
        setting = {"draws": len(turns), "beside": beside}
        records.append(run.record("speed", mean(ratios), name, setting, to=beside, spread=pstdev(ratios)))
    run.show(table)
    run.write(records)
    met = all(
        spreads[name, BF16] <= spreads[name, DENSE] / 2 for name in RECIPES if name.endswith("bf16") and name != BF16
    )
    print(f"beside the model in bf16 the spread is at most half: {yes(met)}")
    return run.quick or met


if __name__ == "__main__":
    BENCHMARK.run(main)
