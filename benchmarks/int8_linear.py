"""One linear layer with an int8 weight, multiplied in every way that torch has on a CPU, and in bfloat16 and float32.

    python benchmarks/int8_linear.py --threads N [--quick] [--json results/int8_linear.jsonl]

Widths of MiniLM, of BERT and of thin low-rank factors; 1 row, 18 (one sentence), 144 (8 of them) and 1024 (8 x 128
tokens). All take turns. `fused` is torch's own kernel, of a stack that torch proposes to remove; `by_token` and
`prepacked` are what is left without it; `chosen` is what int8 layers run, and `without` what they run where torch lacks
`fused`. The error is that of the product, relative to the product of float inputs with the same int8 weight. Bar:
`chosen` is nowhere slower than `fused`, but for 10 %, by which two calls of one kernel differ here.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from _harness import Benchmark, Run, yes
from rich.table import Table
from torch import Tensor

from greenformers.changes import _int8_kernels as kernels
from greenformers.changes._int8_linear import quantised
from greenformers.measure.latency import Timing

SHAPES = ((384, 384), (384, 1536), (1536, 384), (768, 768), (768, 3072), (3072, 768), (384, 192), (192, 1536))
REPEATS = {1: 201, 18: 101, 144: 61, 1024: 41}  # by rows
NOISE = 1.1

BENCHMARK = Benchmark(__file__, __doc__, quick="three shapes, 5 turns", threads=1)


def main(run: Run) -> bool:
    threads = torch.get_num_threads()
    columns = ("n x m", "rows", "fused", "by_token", "prepacked", "chosen", "without", "bfloat16", "float32")
    times_table = Table(*columns, title=f"us, and times as fast as fused; threads: {threads}")
    error_table = Table(*columns, title="relative error")
    met, records = True, []
    for n, m in SHAPES[:3] if run.quick else SHAPES:
        for rows, repeats in REPEATS.items():
            calls, exact = ways(n, m, rows)
            with torch.inference_mode():
                errors = {name: error(call(), exact) for name, call in calls.items()}
                times = run.times(calls, repeats, 5, warmup=3)
            setting = {"n": n, "m": m, "rows": rows, "threads": threads}
            for name, timing in times.items():
                ratio = times["fused"].median / timing.median
                records.append(run.record("latency", timing, name, setting, ratio=ratio, to="fused"))
                records.append(run.record("relative_error", errors[name], name, setting))
            met &= times["chosen"].q1 <= NOISE * times["fused"].q1
            place = (f"{n} x {m}", str(rows))
            times_table.add_row(*place, *(cell(times, name) for name in columns[2:]))
            error_table.add_row(*place, *(f"{errors[name]:.4f}" for name in columns[2:]))
    run.show(times_table, error_table)
    print(f"chosen is nowhere slower than fused: {yes(met)}")
    run.write(records)
    return met


def ways(n: int, m: int, rows: int) -> tuple[dict[str, Callable[[], Any]], Tensor]:
    """The calls, by name, and the product in float64 with the weight that the int8 numbers stand for."""
    torch.manual_seed(0)
    x, bias = torch.randn(rows, n), torch.randn(m)
    weight = quantised(torch.randn(m, n) * n**-0.5)
    dense = weight[1][:, None] * weight[0]
    products = {name: getattr(kernels, name)(*weight, bias) for name in ("fused", "by_token", "prepacked")}
    products["chosen"] = kernels.kernel(*weight, bias)
    there, kernels.has_fused_int8 = kernels.has_fused_int8, lambda: False
    products["without"] = kernels.kernel(*weight, bias)
    kernels.has_fused_int8 = there
    half = dense.bfloat16(), bias.bfloat16()
    products["bfloat16"] = lambda x: F.linear(x.bfloat16(), *half).float()
    products["float32"] = lambda x: F.linear(x, dense, bias)
    calls: dict[str, Callable[[], Any]] = {name: partial(call, x) for name, call in products.items()}
    return calls, F.linear(x.double(), dense.double(), bias.double())


def error(product: Tensor, exact: Tensor) -> float:
    """How far a product is from the exact one, relative to it."""
    return ((product - exact).norm() / exact.norm()).item()


def cell(times: dict[str, Timing], name: str) -> str:
    """A time in microseconds, and how many times as fast as the fused kernel that is."""
    return f"{1e6 * times[name].median:.0f} ({times['fused'].median / times[name].median:.2f}x)"


if __name__ == "__main__":
    BENCHMARK.run(main)
