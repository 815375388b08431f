"""The memory of figures 3.4, 3.5 and 3.7 of the Greenformers thesis (Cahyawijaya 2021), as defined there, and ours.

    python benchmarks/thesis_memory.py [--quick] [--json results/thesis_memory.jsonl] [--picture docs/thesis_memory.png]

In the thesis memory is that of weights and activations of one sequence with eager attention: two layers of d 768 with
12 heads, and in training what the backward pass needs as well. `greenformers bench` has another definition: the peak of
activations alone, of a batch of 2,048 tokens or more, with SDPA. Here all 72 cells by the thesis' definition, for our
networks, from shapes alone: nothing is measured, and every machine gives the same. Beside them the same with SDPA; and
the cells that a formula gives, whose coefficients are those with the least squared error to the printed cells:

    floats = weights + a N d + b H N M,     M = N in dense attention, k in Linformer,

in one figure the same a and b for both networks; but Linformer's a is its own, beside LRT's dense network. Figure 3.5,
ln of LRT's memory over Linformer's, is made of the same counts.

Bar: of the Low-Rank Transformer in inference 90 % of the cells within 5 % of the printed, or equal to it as printed.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from math import log
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np
import torch
from _harness import REFERENCE, Benchmark, Option, Run, yes
from matplotlib.figure import Figure
from rich.table import Table
from torch.nn.attention import SDPBackend, sdpa_kernel

from greenformers.measure.grid import BASELINE, MODES, Cell, Network, Stack
from greenformers.measure.parameters import parameters
from greenformers.measure.record import Record
from greenformers.measure.trace import trace
from greenformers.report.curves import save
from greenformers.report.heat import Field, Heat, Scale, heat_maps
from greenformers.report.published import THESIS, THESIS_LRT_LINFORMER, fields

NETWORK, FLOAT = Network(), 4
WITHIN, SHARE, ROUNDED = 0.05, 0.9, 0.005
KINDS = ("eager", "SDPA")
COEFFICIENTS = np.arange(0, 40.1, 0.5)
SCALE = Scale("times less than dense (blue)")

BENCHMARK = Benchmark(
    __file__,
    __doc__,
    quick="lengths up to 512 alone",
    options=(
        Option("--references", "published figures", Path, REFERENCE, needs=(*THESIS.values(), THESIS_LRT_LINFORMER)),
        Option("--picture", "file the picture is drawn into", Path),
    ),
)


class Panel(NamedTuple):
    """One printed figure, and ours beside it.

    Attributes:
        variant: Name of the variant.
        mode: "inference" or "training".
        printed: Share of the dense network's memory, by length and rank.
        ours: The same of our networks, by the kind of attention.
        fitted: The same by the formula.
        a: Floats of a position and coordinate in the formula.
        b: Floats of a score in the formula.
    """

    variant: str
    mode: str
    printed: Mapping[Field, float]
    ours: Mapping[str, Mapping[Field, float]]
    fitted: Mapping[Field, float]
    a: float
    b: float


class Against(NamedTuple):
    """A printed half of figure 3.5, and ours beside it: ln of LRT's memory over Linformer's, by length and rank.

    Attributes:
        mode: "inference" or "training".
        printed: The printed numbers.
        ours: Those of our networks, by the kind of attention.
    """

    mode: str
    printed: Mapping[Field, float]
    ours: Mapping[str, Mapping[Field, float]]


def main(run: Run) -> bool:
    panels: list[Panel] = []
    for (variant, mode), file in THESIS.items():
        printed = read(run, file, "memory_ratio_vs_transformer")
        panels.append(panel(variant, mode, printed, panels[0] if variant == "linformer" else None))
        run.write(records(run, variant, mode, panels[-1].ours))
    halves = [against(mode, read(run, THESIS_LRT_LINFORMER, f"ln_memory_ratio_{mode}")) for mode in MODES]
    for half in halves:
        if ("linformer", half.mode) not in THESIS:  # whose records are not there yet
            run.write(records(run, "linformer", half.mode, shares_of_dense("linformer", half.mode, half.printed)))
    run.show(shown(panels), beside(halves))
    if run.given.picture:
        save(picture(panels), run.given.picture)
    first = panels[0]
    share = close(first.ours["eager"], first.printed)
    fine = share >= SHARE
    print(f"LRT in inference: {share:.0%} of the cells within 5 %, at least {SHARE:.0%}: {yes(fine)}")
    return fine


def read(run: Run, file: str, column: str) -> dict[Field, float]:
    """Printed numbers by length and rank."""
    printed = fields(run.given.references, file, column)
    return {(n, r): number for (n, r), number in printed.items() if not run.quick or n <= 512}


def panel(variant: str, mode: str, printed: Mapping[Field, float], dense: Panel | None) -> Panel:
    """A printed figure, with our networks and a formula beside it, whose dense network may be another figure's."""
    # In the thesis k may be greater than N; here it may not, and there is nothing to compare with.
    possible = {(n, r): share for (n, r), share in printed.items() if variant == "lrt" or r <= n}
    grid = [(a, a, b) for a in COEFFICIENTS for b in COEFFICIENTS]
    if dense is not None:
        grid = [(a, dense.a, dense.b) for a in COEFFICIENTS]
    cells, shares = list(printed), np.array(list(printed.values()))
    best = min(grid, key=lambda own: float(np.square(formula(variant, cells, *own) - shares).sum()))
    fitted = dict(zip(possible, map(float, formula(variant, list(possible), *best)), strict=True))
    return Panel(variant, mode, possible, shares_of_dense(variant, mode, possible), fitted, best[0], best[2])


def against(mode: str, printed: Mapping[Field, float]) -> Against:
    """A half of figure 3.5, with our networks beside it."""
    possible = {(n, r): ratio for (n, r), ratio in printed.items() if r <= n}
    ours = {
        kind: {
            (n, r): log(needed("lrt", r, n, mode, kind) / needed("linformer", r, n, mode, kind)) for n, r in possible
        }
        for kind in KINDS
    }
    return Against(mode, possible, ours)


def shares_of_dense(variant: str, mode: str, cells: Iterable[Field]) -> dict[str, dict[Field, float]]:
    """The share of the dense network's memory that ours need, by the kind of attention and by length and rank."""
    at = list(cells)
    return {
        kind: {(n, r): needed(variant, r, n, mode, kind) / needed(BASELINE, None, n, mode, kind) for n, r in at}
        for kind in KINDS
    }


@cache
def weights(variant: str, rank: int | None, length: int) -> int:
    """Number of weights of the layers."""
    with torch.device("meta"):
        return parameters(Stack(NETWORK, Cell(variant, rank, length)))


@cache
def needed(variant: str, rank: int | None, length: int, mode: str, kind: str) -> float:
    """Bytes of weights and activations of one sequence; in training of those that the backward pass begins with."""
    with sdpa_kernel(SDPBackend.MATH) if kind == "eager" else nullcontext():
        work = trace(
            lambda: Stack(NETWORK, Cell(variant, rank, length)),
            (1, length, NETWORK.hidden),
            training=mode == "training",
        )
    return FLOAT * weights(variant, rank, length) + (work.saved if mode == "training" else work.peak)


def formula(variant: str, cells: Sequence[Field], a: float, dense_a: float, b: float) -> np.ndarray:
    """Shares of the dense network's memory that the formula gives to cells."""
    n, r = np.array(cells, dtype=float).T
    own = np.array([weights(variant, min(r, n) if variant == "linformer" else r, n) for n, r in cells])
    dense = np.array([weights(BASELINE, None, n) for n, _ in cells])
    keys = r if variant == "linformer" else n
    positions, scores = n * NETWORK.hidden, b * NETWORK.heads * n
    return (own + a * positions + scores * keys) / (dense + dense_a * positions + scores * n)


def close(ours: Mapping[Field, float], printed: Mapping[Field, float]) -> float:
    """The share of cells within 5 % of the printed, or equal to it as it is printed."""
    near = [abs(ours[at] / share - 1) <= WITHIN or abs(ours[at] - share) <= ROUNDED for at, share in printed.items()]
    return sum(near) / len(near)


def records(run: Run, variant: str, mode: str, ours: Mapping[str, Mapping[Field, float]]) -> list[Record]:
    """A record of each cell and kind of attention, from shares of the dense network's memory."""
    metric = f"memory_{mode}"
    rows = []
    for kind, cells in ours.items():
        for (n, r), share in cells.items():
            setting = {"length": n, "rank": r, "batch": 1, "attention": kind}
            value = needed(variant, r, n, mode, kind) / 2**20
            rows.append(run.record(metric, value, variant, setting, ratio=1 / share, to=BASELINE, source="counted"))
    return rows


def shown(panels: Sequence[Panel]) -> Table:
    table = Table(
        "figure", "cells", "ours, eager: within 5 %", "within 0.02", "farthest (N, r)", "a", "b", "formula: within 5 %",
        "within 0.02",
    )  # fmt: skip
    for figure in panels:
        eager, printed = figure.ours["eager"], figure.printed
        at = max(printed, key=lambda at: abs(eager[at] - printed[at]))
        table.add_row(
            f"{figure.variant}, {figure.mode}", str(len(printed)), f"{close(eager, printed):.0%}",
            f"{near(eager, printed):.0%}", f"{at[0]}, {at[1]}: {eager[at]:.2f}, printed {printed[at]:.2f}",
            f"{figure.a:g}", f"{figure.b:g}", f"{close(figure.fitted, printed):.0%}",
            f"{near(figure.fitted, printed):.0%}",
        )  # fmt: skip
    return table


def beside(halves: Sequence[Against]) -> Table:
    """Figure 3.5 by length, printed and ours: means over ranks."""
    table = Table("N", *(f"{half.mode}, {name}" for half in halves for name in ("thesis", *KINDS)))
    table.title = "ln (memory of LRT / memory of Linformer), mean over ranks up to N (thesis, figure 3.5)"
    for length in dict.fromkeys(n for n, _ in halves[0].printed):
        means = [
            mean(ratio for (n, _), ratio in cells.items() if n == length)
            for half in halves
            for cells in (half.printed, *half.ours.values())
        ]
        table.add_row(str(length), *(f"{ratio:+.1f}" for ratio in means))
    sides = (f"{same_side(half.ours[KINDS[0]], half.printed):.0%} in {half.mode}" for half in halves)
    table.caption = f"Ours, eager: cells on the printed side of 0: {', '.join(sides)}."
    return table


def same_side(ours: Mapping[Field, float], printed: Mapping[Field, float]) -> float:
    """The share of cells in which the network that needs less is the one that does as printed; 0 is on both sides."""
    return sum(ours[at] * ratio >= 0 for at, ratio in printed.items()) / len(printed)


def near(ours: Mapping[Field, float], printed: Mapping[Field, float]) -> float:
    """The share of cells within 0.02 of the printed."""
    return sum(abs(ours[at] - share) <= 0.02 + 1e-9 for at, share in printed.items()) / len(printed)


def picture(panels: Sequence[Panel]) -> Figure:
    """A row for each printed figure: the printed one, ours with eager attention and with SDPA, and the formula."""
    rows = []
    for figure in panels:
        title = f"{figure.variant}, {figure.mode}"
        ours = {f"ours, {kind}": shares for kind, shares in figure.ours.items()}
        cells = {"thesis": figure.printed, **ours, f"{figure.a:g} N d + {figure.b:g} H N M": figure.fitted}
        rows.append(
            [Heat(f"{title}\n{name}", {at: 1 / x for at, x in shares.items()}) for name, shares in cells.items()]
        )
    return heat_maps("Weights and activations of one sequence (thesis, figures 3.4 and 3.7)", rows, SCALE)


if __name__ == "__main__":
    BENCHMARK.run(main)
