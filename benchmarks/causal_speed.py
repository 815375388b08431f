"""Mechanisms that may look at all earlier keys beside causal SDPA, with the same q, k and v: time and peak memory.

    python benchmarks/causal_speed.py [--quick] [--json results/causal_speed.jsonl]

8 heads of 64, one sequence, causal, all sides of a setting interleaved. `transformer_xl` has a third product for its
scores by distance, and its limit by arithmetic is 1.5x the time of SDPA in inference, 1.6x in training. `dacs` reads
all keys where they have little weight, and stops after an eighth of N where each has the weight 8 / N. Bars: 1.8x,
1.6x and less than SDPA from N 2,048 on.
"""

import math

import torch
from _harness import Benchmark, Run, yes
from rich.table import Table
from torch import Tensor, nn

from greenformers.attention import Shape, build
from greenformers.measure.costs import Subject, costs
from greenformers.measure.record import Record, with_ratios

HEADS, DIM = 8, 64
LENGTHS = (1024, 2048, 4096, 8192)
BASELINE, XL, ALL, EIGHTH = "sdpa", "transformer_xl", "dacs, all keys", "dacs, an eighth"
METRICS = {"inference": ("latency", "peak_memory_inference"), "training": ("train_step", "peak_memory_training")}

BENCHMARK = Benchmark(__file__, __doc__, quick="one length and 3 repeats")


def main(run: Run) -> bool:
    met = True
    for length in LENGTHS[:1] if run.quick else LENGTHS:
        for mode in METRICS:
            records = measured(run, mode, length)
            met &= show(run, records)
            run.write(records)
    print(f"every bar is met: {yes(met)}")
    return met


def bar(variant: str, length: int) -> float | None:
    """Most times that of SDPA that a variant may take."""
    return {XL: 1.8, ALL: 1.6, EIGHTH: 1.0 if length >= 2048 else None}.get(variant)


def keys(k: Tensor, weight: float) -> Tensor:
    """Keys of which each gets about this weight of a query with a 1 in its last place."""
    logit = math.log(weight / (1 - weight))
    return torch.cat([0.05 * k[..., :-1], torch.full_like(k[..., -1:], logit * DIM**0.5)], -1)


def measured(run: Run, mode: str, length: int) -> list[Record]:
    """Time and memory of every side in one setting."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, HEADS, length, DIM).unbind()
    q = torch.cat([0.05 * q[..., :-1], torch.ones_like(q[..., -1:])], -1)
    shape = Shape(HEADS, DIM, length, causal=True)
    given = {BASELINE: ("full", 1e-6), XL: (XL, 1e-6), ALL: ("dacs", 1e-6), EIGHTH: ("dacs", 8 / length)}

    def subject(module: nn.Module, weight: float) -> Subject:
        inputs = [x.clone().requires_grad_(mode == "training") for x in (q, keys(k, weight), v)]
        return Subject(module, lambda: module(*inputs).sum())

    records = costs(
        {name: subject(build(mechanism, shape), weight) for name, (mechanism, weight) in given.items()}, METRICS[mode],
        benchmark=BENCHMARK.name, setting={"mode": mode, "length": length}, repeats=3 if run.quick else 7,
        about=run.about,
    )  # fmt: skip
    return with_ratios(records, to=BASELINE)


def show(run: Run, records: list[Record]) -> bool:
    """Print one setting; True if every bar in it is met."""
    setting = records[0].setting
    time, memory = METRICS[setting["mode"]]
    title = f"{setting['mode']}, N {setting['length']:,}"
    table = Table("", "time, ms", "times SDPA's", "bar", "peak MiB", title=title)
    figure = {(record.variant, record.metric): record for record in records}
    met = True
    for name in dict.fromkeys(record.variant for record in records):
        times, most = figure[name, time].value / figure[BASELINE, time].value, bar(name, setting["length"])
        met = met and (most is None or times <= most)
        table.add_row(
            name, f"{figure[name, time].value:.1f}", f"{times:.2f}x", "" if most is None else f"{most:g}x",
            f"{figure[name, memory].value:.0f}",
        )  # fmt: skip
    run.show(table)
    return met


if __name__ == "__main__":
    BENCHMARK.run(main)
