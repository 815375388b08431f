"""What it costs to compress a model from disk, block by block with texts: measured on small blocks, foreseen for large.

    python benchmarks/compress_costs.py [--solvers gptq,sequential] [--quick] [--json results/compress_costs.jsonl]

A block of linear layers (m, n) that P weights are in, and T tokens to calibrate with, take

    a P T + b S,   S = sum m n^2 + sum n^3,

seconds: passes and sums over inputs, which grow with the tokens, and decompositions and rounding, which do not; the
last sum is over inputs, which query, key and value, or gate and up, have in common. Blocks of Llama's kind with widths
from 512 to 2,048 are compressed by the command of a user: the time of four blocks less that of two is that of two. a
and b are those of the least relative errors. The error is that on each block by a fit to those of all other shapes, and
on the widest by a fit to the narrower ones, which is what foreseeing a 7B model asks for.

Then hours for Llama-2's 7B, 13B and 70B (Touvron 2023, arXiv:2307.09288) on 64 texts of 512 tokens; and by arithmetic
alone, as compressing from disk runs on the CPU, what accelerators would take at a third of their peak: floating-point
operations are a and b times what this machine multiplies a second, measured beside. Stopped, the same command goes on:
with --json blocks that are in the file are not repeated.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from _harness import Benchmark, Option, Run
from compress_7b import BY_BLOCK, LENGTH, compress, write, write_texts
from rich.table import Table
from scipy.optimize import nnls
from transformers import LlamaConfig

from greenformers.measure.record import Record

VOCABULARY, TEXTS, LARGE_TEXTS = 512, (4, 16), 64
PEAKS, SHARE = {"float32": 67e12, "float64": 34e12}, 1 / 3
"""Operations a second of an H100 SXM without tensor cores, by its data sheet, and the share that is reached."""

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="two narrow shapes and gptq; the figures mean nothing",
    options=(Option("--solvers", f"of {', '.join(BY_BLOCK)}", default=",".join(BY_BLOCK)),),
    json="file the records are added to, and known blocks are read from",
    threads=2,
)


@dataclass(frozen=True)
class Shape:
    """A block of Llama's kind.

    Attributes:
        d: width.
        f: width of the feed-forward layer.
        heads: of attention.
        shared: heads that share a key and a value.
    """

    d: int
    f: int
    heads: int
    shared: int = 1

    @property
    def weights(self) -> list[tuple[int, int]]:
        """The linear layers (m, n): query, key, value, output, gate, up, down."""
        d, f, narrow = self.d, self.f, self.d // self.shared
        return [(d, d), (narrow, d), (narrow, d), (d, d), (f, d), (f, d), (d, f)]

    def work(self, tokens: int) -> list[float]:
        """P T and S."""
        inputs = (self.d, self.d, self.d, self.f)
        solved = sum(m * n**2 for m, n in self.weights) + sum(n**3 for n in inputs)
        return [float(sum(m * n for m, n in self.weights)) * tokens, float(solved)]


SHAPES = (
    Shape(512, 1376, 8), Shape(1024, 1024, 16), Shape(1024, 2752, 16), Shape(1024, 4096, 16), Shape(1536, 4128, 16),
    Shape(2048, 5504, 16),
)  # fmt: skip
MODELS = {
    "7B": (32, Shape(4096, 11_008, 32)), "13B": (40, Shape(5120, 13_824, 40)),
    "70B": (80, Shape(8192, 28_672, 64, shared=8)),
}  # fmt: skip
"""Blocks, and the shape of each."""


def main(run: Run) -> None:
    solvers = run.given.solvers.split(",")
    for name in solvers:
        if name not in BY_BLOCK:
            run.refuse(f"--solvers must be of {', '.join(BY_BLOCK)}, got {name!r}")
    shapes, texts = (SHAPES[:2], (1, 2)) if run.quick else (SHAPES, TEXTS)
    rates = {"float32": rate(torch.float32), "float64": rate(torch.float64)}
    for solver in solvers[:1] if run.quick else solvers:
        rows, seconds = [], []
        for shape in shapes:
            for count in texts:
                name = f"{solver}, a block"
                setting = {"d": shape.d, "f": shape.f, "tokens": count * LENGTH, "threads": run.given.threads}
                known = run.remembered("compression_time", name, setting)
                took = a_block(shape, solver, count) if known is None else known.value
                if known is None:
                    run.write([run.record("compression_time", took, name, setting)])
                rows.append(shape.work(count * LENGTH))
                seconds.append(took)
                print(f"{solver}: d {shape.d}, f {shape.f}, {count} texts: {took:.1f} s a block", flush=True)
        run.write(foreseen(run, solver, np.array(rows), np.array(seconds), rates, len(texts)))


def rate(dtype: torch.dtype) -> float:
    """Operations a second of products of matrices."""
    x, times = torch.randn(2048, 2048, dtype=dtype), []
    for _ in range(5):
        began = time.perf_counter()
        x @ x
        times.append(time.perf_counter() - began)
    return float(2 * 2048**3 / np.median(times))


def a_block(shape: Shape, solver: str, texts: int) -> float:
    """Seconds that a block takes: half of the time of four blocks less that of two, as one alone is no stack."""
    took = {}
    for blocks in (2, 4):
        with tempfile.TemporaryDirectory() as name:
            dense = Path(name) / "dense"
            config = LlamaConfig(
                vocab_size=VOCABULARY, hidden_size=shape.d, intermediate_size=shape.f, num_hidden_layers=blocks,
                num_attention_heads=shape.heads, dtype=torch.bfloat16,
            )  # fmt: skip
            write(dense, config)
            file = write_texts(dense, Path(name) / "texts.txt", texts, VOCABULARY)
            options = [*BY_BLOCK[solver], "--calibrate", str(file), "--length", str(LENGTH)]
            took[blocks], _ = compress(dense, options, Path(name) / "small")
    return (took[4] - took[2]) / 2


def foreseen(
    run: Run, solver: str, work: np.ndarray, seconds: np.ndarray, rates: dict[str, float], texts: int
) -> list[Record]:
    """Print the fit, its errors, and what large models take. Records of these. A shape has a row for each of texts."""
    at = fitted(work, seconds)
    errors: list[np.ndarray] = []
    for own in np.arange(len(work)).reshape(-1, texts):  # the rows of a shape, the last of which is the widest
        others = fitted(np.delete(work, own, 0), np.delete(seconds, own))
        errors.append(np.abs(work[own] @ others / seconds[own] - 1))
    print(
        f"{solver}: {at[0] * 1e12:.3g} s for 1e12 weights x tokens, {at[1] * 1e12:.3g} s for 1e12 of S; error by a fit "
        f"to all other shapes: median {np.median(errors):.1%}, largest {np.max(errors):.1%}; of the widest by the "
        f"narrower {np.max(errors[-1]):.1%}"
    )
    table = Table("model", "a block, min", f"{solver} here, hours", "one accelerator, hours*", "eight, hours*")
    records = [run.record("relative_error", float(np.median(errors)), f"{solver}, foreseen", {}, source="estimated")]
    for name, (layers, shape) in MODELS.items():
        tokens = LARGE_TEXTS * LENGTH
        passes, solving = at * shape.work(tokens)
        # Passes and sums over inputs are shared out; what is solved is the same in each.
        there = [
            passes * rates["float32"] / (SHARE * PEAKS["float32"]),
            solving * rates["float64"] / (SHARE * PEAKS["float64"]),
        ]
        hours = [layers * part / 3600 for part in (passes + solving, sum(there), there[0] / 8 + there[1])]
        table.add_row(name, f"{(passes + solving) / 60:.1f}", *(f"{hour:.2f}" for hour in hours))
        setting = {"model": name, "tokens": tokens, "threads": run.given.threads}
        records.append(
            run.record("compression_time", 3600 * hours[0], f"{solver}, foreseen", setting, source="estimated")
        )
    run.show(table)
    print("* by arithmetic, see above; not measured")
    return records


def fitted(work: np.ndarray, seconds: Sequence[float] | np.ndarray) -> np.ndarray:
    """The a and b of least squares of the relative errors, none below 0."""
    return nnls(work / np.asarray(seconds)[:, None], np.ones(len(work)))[0]


if __name__ == "__main__":
    BENCHMARK.run(main)
