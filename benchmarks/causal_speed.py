"""Mechanisms that may look at all earlier keys beside causal SDPA, with the same q, k and v: time and peak memory.

    python benchmarks/causal_speed.py [--quick] [--json results/causal_speed.jsonl]

8 heads of 64, one sequence, causal, all sides of a setting interleaved. `transformer_xl` has a third product for its
scores by distance, and its limit by arithmetic is 1.5x the time of SDPA in inference, 1.6x in training. `dacs` reads
all keys where they have little weight, and stops after an eighth of N where each has the weight 8 / N. `adaptive_span`,
which has a third product too, once with spans of all N and once of an eighth. `huang` is full attention with the Music
Transformer's positions in its scores, without a bar. Bars: 1.8x for `transformer_xl`; for `dacs` and `adaptive_span`
1.6x where they read all, and less than SDPA from N 2,048 on where they read an eighth.
"""

import math
from typing import Any

import torch
from _harness import Benchmark, Run, yes
from rich.table import Table
from torch import Tensor, nn

from greenformers.attention import Shape, build
from greenformers.measure.costs import Subject, costs
from greenformers.measure.record import Record, with_ratios
from greenformers.position import Place
from greenformers.position import build as position

HEADS, DIM = 8, 64
LENGTHS = (1024, 2048, 4096, 8192)
BASELINE, XL, ALL, EIGHTH = "sdpa", "transformer_xl", "dacs, all keys", "dacs, an eighth"
SPAN, SHORT, HUANG = "adaptive_span, all keys", "adaptive_span, an eighth", "full, huang"
RAMP = 32
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
    short = 1.0 if length >= 2048 else None
    return {XL: 1.8, ALL: 1.6, EIGHTH: short, SPAN: 1.6, SHORT: short}.get(variant)


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
    place = Place(HEADS * DIM, HEADS, DIM, length, causal=True)
    eighth = (length / 8 - RAMP) / length
    modules: dict[str, tuple[nn.Module, float, dict[str, Any]]] = {
        BASELINE: (build("full", shape), 1e-6, {}), XL: (build(XL, shape), 1e-6, {}),
        ALL: (build("dacs", shape), 1e-6, {}), EIGHTH: (build("dacs", shape), 8 / length, {}),
        SPAN: (build("adaptive_span", shape, init=1.0, ramp=RAMP), 1e-6, {}),
        SHORT: (build("adaptive_span", shape, init=eighth, ramp=RAMP), 1e-6, {}),
        HUANG: (build("full", shape), 1e-6, {"relative": position("huang", place)}),
    }  # fmt: skip

    def subject(module: nn.Module, weight: float, more: dict[str, Any]) -> Subject:
        inputs = [x.clone().requires_grad_(mode == "training") for x in (q, keys(k, weight), v)]
        return Subject(module, lambda: module(*inputs, **more).sum())

    records = costs(
        {name: subject(*given) for name, given in modules.items()}, METRICS[mode], benchmark=BENCHMARK.name,
        setting={"mode": mode, "length": length}, repeats=3 if run.quick else 7, about=run.about,
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
