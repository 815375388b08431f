"""Every attention mechanism in every form, under every kind of mask, in every type, at lengths around its blocks.

    python benchmarks/combinations.py [--names performer,reformer] [--json results/combinations.jsonl]

Rows and forms are those of the contract tests (`tests/attention/rows.py`); masks have no padding, padding on the
right, on the left, on both sides, holes, and rows of nothing but padding; types are float64, float32 and bfloat16. Of
each combination outputs and gradients are finite, also where scores are in the thousands; in float64 the outputs are
those of the formula; other contents of the padding, and in the causal form of the future, change no bit of what may
not see them; and each text gets what it gets alone. Bar: no combination fails.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _harness import Benchmark, Option, Run, yes
from rich.table import Table
from torch import Tensor

from greenformers.attention import Attention

ROWS = Path(__file__).parents[1] / "tests/attention/rows.py"

LONGEST = 37
LENGTHS = (1, 2, 5, 13, 16, LONGEST)
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 6e-2}
BATCH = 3

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="lengths to 5 alone",
    options=(Option("--names", "mechanisms, separated by commas; all if not given"),),
    threads=1,
)


def masks(length: int) -> Iterator[tuple[str, Tensor | None]]:
    """Each kind of mask (B, N) of texts of different lengths; those that differ from one before."""
    at, rows = torch.arange(length), torch.arange(BATCH)[:, None]
    part = length // 3
    kinds: dict[str, Tensor] = {
        "right": at < length - part * rows,
        "left": at >= part * rows,
        "both": (at >= part * rows // 2) & (at < length - part * (rows // 2)),
        "holes": (at + rows) % 3 != 1,
        "nothing": (at >= 0) & (rows != 1),
    }
    yield "none", None
    seen: list[Tensor] = []
    for name, mask in kinds.items():
        if not any(torch.equal(mask, other) for other in seen):
            seen.append(mask)
            yield name, mask


class Case(NamedTuple):
    """One combination."""

    row: Any
    causal: bool
    mask: str
    dtype: torch.dtype
    length: int

    def __str__(self) -> str:
        form = "causal" if self.causal else "bidirectional"
        return f"{self.row}, {form}, mask {self.mask}, {self.dtype}, length {self.length}"


def contract() -> Any:
    """The rows of the contract tests, and their sizes."""
    spec = spec_from_file_location("contract_rows", ROWS)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def drawn(module: Attention, length: int, seed: int, size: float = 1.0) -> list[Tensor]:
    """Queries, keys and values (B, H, N, D)."""
    generator, shape = torch.Generator().manual_seed(seed), (BATCH, module.shape.heads, length, module.shape.head_dim)
    q, k, v = (size * torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
    return [q, q if module.shares_qk else k, v]


def faults(case: Case, mask: Tensor | None) -> list[str]:
    """What is wrong with a combination."""
    module = case.row.build(causal=case.causal, max_len=LONGEST).to(case.dtype).eval()
    given = [x.to(case.dtype) for x in drawn(module, case.length, 1)]
    keep = torch.ones(BATCH, case.length, dtype=torch.bool) if mask is None else mask
    there = keep[:, None, :, None]

    def run(*inputs: Tensor) -> Tensor:
        out: Tensor = module(*inputs, mask)
        return out

    failures = []
    for size in (1.0, 100.0):
        leaves = [x.clone().mul_(size).requires_grad_() for x in given[:2]] + [given[2].clone().requires_grad_()]
        if module.shares_qk:
            leaves[1] = leaves[0]
        out = run(*leaves)
        inputs = [*leaves, *module.parameters()]
        grads = torch.autograd.grad((out * there).sum(), inputs, allow_unused=True) if out.requires_grad else ()
        if not all(x.isfinite().all() for x in (out, *grads) if x is not None):
            failures.append("not finite")
    with torch.no_grad():
        out = run(*given) * there
        close = TOLERANCE[case.dtype]
        if case.dtype == torch.float64:
            expected = case.row.reference(module, *given, mask) * there
            if not torch.allclose(out, expected, atol=close, rtol=close):
                failures.append("not the formula")
        other = [x.to(case.dtype) for x in drawn(module, case.length, 2, 10.0)]
        changed = [torch.where(there, x, y) for x, y in zip(given, other, strict=True)]
        if not torch.equal(run(*changed) * there, out):
            failures.append("padding seen")
        if case.causal:
            half = case.length // 2
            earlier = torch.arange(case.length)[:, None] < half
            changed = [torch.where(earlier, x, y) for x, y in zip(given, other, strict=True)]
            if not torch.equal((run(*changed) * there)[:, :, :half], out[:, :, :half]):
                failures.append("future seen")
        for b in range(BATCH if mask is not None else 0):
            places = keep[b].nonzero().flatten().tolist()
            if not places:
                continue
            text = slice(places[0], places[-1] + 1)
            alone = module(*(x[b : b + 1, :, text] for x in given), keep[b : b + 1, text])
            if not torch.allclose(alone * there[b : b + 1, :, text], out[b : b + 1, :, text], atol=close, rtol=close):
                failures.append("not the text alone")
                break
    return failures


def main(run: Run) -> bool:
    names = None if run.given.names is None else run.given.names.split(",")
    every = contract().ROWS
    rows = [row for row in every if names is None or row.name in names]
    if not rows:
        run.refuse(f"--names must be of {', '.join(dict.fromkeys(row.name for row in every))}; got {run.given.names}")
    lengths = [length for length in LENGTHS if not run.quick or length <= 5]
    counts: Counter[str] = Counter()
    failed = defaultdict[str, list[str]](list)
    for row in rows:
        for causal in (False, True) if row.causal else (False,):
            for length in lengths:
                for name, mask in masks(length):
                    for dtype in TOLERANCE:
                        case = Case(row, causal, name, dtype, length)
                        counts[row.name] += 1
                        if wrong := faults(case, mask):
                            failed[row.name].append(str(case))
                            print(f"{case}: {', '.join(wrong)}", flush=True)
    table = Table("mechanism", "combinations", "failed")
    for name, count in counts.items():
        table.add_row(name, str(count), str(len(failed[name])))
    run.show(table)
    total = sum(counts.values())
    setting = {"longest": max(lengths), "batch": BATCH}
    for name, count in counts.items():
        faulty = run.record("failures", len(failed[name]), name, setting)
        run.write([run.record("checks", count, name, setting), faulty])
    faults_in_all = sum(map(len, failed.values()))
    print(f"{total} combinations, {faults_in_all} failed; none fails: {yes(faults_in_all == 0)}")
    return faults_in_all == 0


if __name__ == "__main__":
    BENCHMARK.run(main)
