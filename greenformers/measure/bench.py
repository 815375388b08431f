"""Measure the cells of a grid: the five measures of thesis 3.2, FLOPs, energy, and the largest batch that fits."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from transformers import set_seed

from greenformers.measure.bench_options import How
from greenformers.measure.costs import MIB, Subject
from greenformers.measure.energy_of import energy_of
from greenformers.measure.flops import flops
from greenformers.measure.grid import BASELINE, Cell, Network, Stack, call_of
from greenformers.measure.latency import Timing, interleaved
from greenformers.measure.limit import OutOfMemory, attempt
from greenformers.measure.memory import peak_memory
from greenformers.measure.parameters import parameters
from greenformers.measure.record import Record, with_ratios

NAMES = {
    "inference": ("latency", "peak_memory_inference", "flops", "energy_inference"),
    "training": ("train_step", "peak_memory_training", "flops_training", "energy_training"),
}
"""Of each mode the metrics of time, memory, FLOPs and energy."""


def setting(cell: Cell, network: Network, how: How) -> dict[str, Any]:
    """What tells the records of a cell from others'."""
    found = {"length": cell.length, "batch": max(1, how.tokens // cell.length), "rank": cell.rank}
    sizes = {name: value for name, value in asdict(network).items() if value not in (False, {})}
    where = {"device": how.device} | ({"compiled": True} if how.compiled else {})
    return found | sizes | where


def bench(
    cells: Sequence[Cell],
    network: Network,
    how: How,
    about: dict[str, Any],
    known: Sequence[Record] = (),
    progress: Callable[[str, float], None] = lambda *_: None,
) -> Iterator[list[Record]]:
    """Measure all cells but those known; the records of a length and mode at a time.

    Args:
        cells: of `greenformers.measure.grid.cells`.
        network: the sizes they have in common.
        how: of measurement.
        about: context of the records.
        known: records of earlier runs of the same grid.
        progress: called with the share of the work that is done, by FLOPs.
    """
    have = {(record.variant, str(record.setting), record.metric) for record in known}

    def there(cell: Cell, mode: str) -> bool:
        key = (cell.variant, str(setting(cell, network, how)))
        return (*key, NAMES[mode][0]) in have or (*key, f"out_of_memory_{mode}") in have

    groups = [
        (mode, [cell for cell in group if not there(cell, mode)])
        for _, group_ in groupby(cells, key=lambda cell: cell.length)
        for group in [list(group_)]
        for mode in how.modes
    ]
    groups = [(mode, group) for mode, group in groups if group]
    # The dense network with SDPA is what others are compared with, in the same run.
    todo = [(mode, [Cell(BASELINE, None, group[0].length), *(c for c in group if c.variant != BASELINE)], group)
            for mode, group in groups]  # fmt: skip
    work = [sum(_counted(cell, network, how, mode) for cell in run) for mode, run, _ in todo]
    done = 0.0
    for (mode, run, wanted), share in zip(todo, work, strict=True):
        progress("measuring", done / sum(work))
        names = {cell.name for cell in wanted}

        def within(part: float, done: float = done, share: float = share) -> None:
            progress("measuring", (done + part * share) / sum(work))

        found = _group(run, network, how, mode, about, within)
        yield [record for cell, record in found if cell.name in names]
        done += share
    progress("measuring", 1.0)


def _counted(cell: Cell, network: Network, how: How, mode: str) -> float:
    """FLOPs of a cell, from shapes alone; a backward pass as two forward passes."""
    with torch.device("meta"):
        stack = Stack(network, cell).eval()
        x = torch.empty(max(1, how.tokens // cell.length), cell.length, network.hidden)
    with torch.inference_mode():
        return flops(call_of(stack, x)) * (3 if mode == "training" else 1)


def _group(
    cells: Sequence[Cell],
    network: Network,
    how: How,
    mode: str,
    about: dict[str, Any],
    progress: Callable[[float], None],
) -> list[tuple[Cell, Record]]:
    """All records of one length and mode, each with its ratio to the dense network with SDPA.

    What is counted, what is timed and the energy are equal parts of the progress.
    """
    time, memory, count, energy = NAMES[mode]
    device = torch.device(how.device)
    calls: dict[str, Callable[[], object]] = {}
    found: list[tuple[Cell, Record]] = []

    def add(
        cell: Cell, metric: str, value: float, spread: float | None = None, source: str = "measured",
        by: str | None = None,
    ) -> None:  # fmt: skip
        record = Record.of(
            metric, value, benchmark="bench", variant=cell.variant, setting=setting(cell, network, how), spread=spread,
            source=source, by=by, context=about,
        )  # fmt: skip
        found.append((cell, record))

    set_seed(how.seed)
    x = torch.randn(max(1, how.tokens // cells[0].length), cells[0].length, network.hidden, device=device)
    for number, cell in enumerate(cells):
        progress(number / len(cells) / 3)
        stack = Stack(network, cell).to(device).train(mode == "training")
        run = call(stack, x, mode, compiled=how.compiled)
        try:
            peak = attempt(lambda run=run: peak_memory(run, device), device)  # type: ignore[misc]
        except OutOfMemory as error:
            add(cell, f"out_of_memory_{mode}", error.limit / MIB)
            continue
        calls[cell.name] = run
        add(cell, memory, peak / MIB)
        # Of the real call: on the meta device, which the progress is estimated on, attention has another backward pass.
        add(cell, count, flops(call(stack, x, mode)) / 1e9, source="counted")
        if mode == "inference":
            add(cell, "parameters", parameters(stack), source="counted")
        if how.memory is not None:
            add(cell, f"largest_batch_{mode}", largest_batch(stack, cell.length, network, how, mode))
    with torch.inference_mode(mode == "inference"):
        timings = (
            interleaved(
                calls, repeats=how.repeats, warmup=1, device=device, progress=lambda share: progress((1 + share) / 3)
            )
            if calls
            else {}
        )
    by_name = {cell.name: cell for cell in cells}
    for name, timing in timings.items():
        # The whole range: quartiles do not say how far a shared machine is from itself a minute later.
        add(by_name[name], time, 1e3 * timing.median, spread=1e3 * (max(timing.samples) - min(timing.samples)))
    if how.country is not None and calls:
        milliseconds = {name: 1e3 * timing.median for name, timing in timings.items()}
        spent_by = energy_of(
            calls,
            milliseconds,
            how.country,
            training=mode == "training",
            turns=1,
            progress=lambda share: progress((2 + share) / 3),
        )
        for name, spent in spent_by.items():
            add(by_name[name], energy, spent.mwh, source=spent.source, by=spent.by)
    # Where memory ended is no figure of merit.
    ended = [entry for entry in found if entry[1].metric.startswith("out_of_memory")]
    rest = [entry for entry in found if entry not in ended]
    rated = with_ratios([record for _, record in rest], BASELINE, across=("rank",))
    found = [*ended, *zip((cell for cell, _ in rest), rated, strict=True)]
    return [(cell, _paired(record, timings, cell) if record.metric == time else record) for cell, record in found]


def _paired(record: Record, timings: Mapping[str, Timing], cell: Cell) -> Record:
    """A record of time whose ratio is the median over rounds: what slows the machine for a while slows both sides."""
    if BASELINE not in timings:
        return record
    rounds = zip(timings[BASELINE].samples, timings[cell.name].samples, strict=True)
    return replace(record, ratio=median(dense / own for dense, own in rounds))


def call(stack: nn.Module, x: Tensor, mode: str, *, compiled: bool = False) -> Callable[[], object]:
    """A forward pass without gradients, or a forward and a backward pass."""
    run: nn.Module = torch.compile(stack) if compiled else stack  # type: ignore[assignment]
    subject = Subject(stack, call_of(run, x))
    if mode == "training":
        return subject.step

    def forward() -> Tensor:
        with torch.inference_mode():
            return subject.forward()

    return forward


def largest_batch(stack: nn.Module, length: int, network: Network, how: How, mode: str) -> int:
    """The most sequences whose peak memory, with the weights, is within `how.memory`, to 2 %; 0 if not one's is."""
    assert how.memory is not None
    device = torch.device(how.device)
    room = how.memory - sum(p.numel() * p.element_size() for p in stack.parameters())

    def fits(batch: int) -> bool:
        x = torch.randn(batch, length, network.hidden, device=device)
        run = call(stack, x, mode, compiled=how.compiled)
        try:
            return x.numel() * x.element_size() + attempt(lambda: peak_memory(run, device), device) <= room
        except OutOfMemory:
            return False

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
