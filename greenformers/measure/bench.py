"""The measuring of a grid's cells: the five measures of Cahyawijaya 2021, 3.2, FLOPs, energy, and the largest batch."""

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

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Of weights and inputs, by the name of a precision."""

NETWORKS = 1024
"""Networks that are compiled at most in one run."""

NAMES = {
    "inference": ("latency", "peak_memory_inference", "flops", "energy_inference"),
    "training": ("train_step", "peak_memory_training", "flops_training", "energy_training"),
}
"""Metrics of time, peak memory, FLOPs and energy, by mode."""


def setting(cell: Cell, network: Network, how: How, metric: str = "") -> dict[str, Any]:
    """The setting of a cell's records of a metric, which tells them from those of other cells.

    The largest batch is that of a memory, in GiB, and CO2 that of a country.

    Args:
        cell: Variant, rank and length.
        network: Sizes that all cells have in common.
        how: Way of measuring.
        metric: Name of the metric.
    """
    own = {"length": cell.length, "batch": max(1, how.tokens // cell.length), "rank": cell.rank}
    sizes = {name: value for name, value in asdict(network).items() if value not in (False, {})}
    where: dict[str, Any] = {"device": how.device} | ({"compiled": True} if how.compiled else {})
    where |= {} if how.precision == "fp32" else {"precision": how.precision}
    if metric.startswith("largest_batch") and how.memory is not None:
        where["memory"] = how.memory / 2**30
    if metric.startswith("co2"):
        where["country"] = how.country
    return own | sizes | where


def bench(
    cells: Sequence[Cell],
    network: Network,
    how: How,
    about: dict[str, Any],
    records: Sequence[Record] = (),
    progress: Callable[[str, float], None] = lambda *_: None,
) -> Iterator[list[Record]]:
    """Measure all cells that lack records, and yield the new records of one length and mode at a time.

    Args:
        cells: Cells, see `greenformers.measure.grid.cells`.
        network: Sizes that all cells have in common.
        how: Way of measuring.
        about: Context of the records.
        records: Records of earlier runs of the same grid.
        progress: Function that is called with a text and the share of the work that is done, by FLOPs.
    """
    have = {(record.variant, str(record.setting), record.metric) for record in records}

    def there(cell: Cell, mode: str) -> bool:
        time, _, _, energy = NAMES[mode]
        metrics = [time, *[energy, f"co2_{mode}"] * (how.country is not None)]
        metrics += [f"largest_batch_{mode}"] * (how.memory is not None)

        def has(metric: str) -> bool:
            return (cell.variant, str(setting(cell, network, how, metric)), metric) in have

        return has(f"out_of_memory_{mode}") or all(map(has, metrics))

    groups = [
        (mode, [cell for cell in group if not there(cell, mode)])
        for _, group_ in groupby(cells, key=lambda cell: cell.length)
        for group in [list(group_)]
        for mode in how.modes
    ]
    groups = [(mode, group) for mode, group in groups if group]
    # The others are compared with the dense network with SDPA, which runs beside them in each group.
    todo = [(mode, [Cell(BASELINE, None, group[0].length), *(c for c in group if c.variant != BASELINE)], group)
            for mode, group in groups]  # fmt: skip
    work = [sum(_counted(cell, network, how, mode) for cell in run) for mode, run, _ in todo]
    done = 0.0
    for (mode, run, missing), share in zip(todo, work, strict=True):
        progress("measuring", done / sum(work))
        names = {cell.name for cell in missing}

        def within(part: float, done: float = done, share: float = share) -> None:
            progress("measuring", (done + part * share) / sum(work))

        measurements = _group(run, network, how, mode, about, within)
        yield [
            record
            for cell, record in measurements
            if cell.name in names and (record.variant, str(record.setting), record.metric) not in have
        ]
        done += share
    progress("measuring", 1.0)


def _counted(cell: Cell, network: Network, how: How, mode: str) -> float:
    """FLOPs of a cell, from shapes alone; a backward pass counts as two forward passes."""
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

    Counting, timing and reading the energy are equal parts of the progress.
    """
    group = _Group(cells, network, how, mode, about)
    group.count(progress)
    if group.calls:
        group.time(lambda share: progress((1 + share) / 3))
    if group.calls and how.country is not None:
        group.read_energy(how.country, lambda share: progress((2 + share) / 3))
    return group.rated()


class _Group:
    """The measuring of cells of one length and mode, which run by turns.

    Attributes:
        calls: Networks that fit the memory, as calls, by name of the cell.
        records: The records so far.
        timings: Their times, by name of the cell.
    """

    def __init__(self, cells: Sequence[Cell], network: Network, how: How, mode: str, about: dict[str, Any]) -> None:
        self.cells, self.network, self.how, self.mode, self.about = cells, network, how, mode, about
        self.by_name = {cell.name: cell for cell in cells}
        self.device = torch.device(how.device)
        self.calls: dict[str, Callable[[], object]] = {}
        self.records: list[tuple[Cell, Record]] = []
        self.timings: dict[str, Timing] = {}

    def add(
        self, cell: Cell, metric: str, value: float, spread: float | None = None, source: str = "measured",
        by: str | None = None,
    ) -> None:  # fmt: skip
        """Add a record of a cell."""
        record = Record.of(
            metric, value, benchmark="bench", variant=cell.variant,
            setting=setting(cell, self.network, self.how, metric), spread=spread, source=source, by=by,
            context=self.about,
        )  # fmt: skip
        self.records.append((cell, record))

    def count(self, progress: Callable[[float], None]) -> None:
        """Make every network, count its FLOPs and parameters, and measure its memory."""
        how, mode, length = self.how, self.mode, self.cells[0].length
        _, memory, count, _ = NAMES[mode]
        set_seed(how.seed)
        dtype = DTYPES[how.precision]
        size = max(1, how.tokens // length), length, self.network.hidden
        x = torch.randn(*size, device=self.device, dtype=dtype)
        for number, cell in enumerate(self.cells):
            progress(number / len(self.cells) / 3)
            stack = Stack(self.network, cell).to(self.device, dtype).train(mode == "training")
            run = call(stack, x, mode, compiled=how.compiled)
            try:
                # Counted first, as what the first product of a process makes room for is not of this network. And on
                # the real device: on the meta device, as for the progress, attention has another backward pass.
                counted, peak = attempt(
                    lambda stack=stack, run=run: (  # type: ignore[misc]
                        flops(call(stack, x, mode)), _peak(run, self.device, how)
                    ),
                    self.device,
                )  # fmt: skip
            except OutOfMemory as error:
                self.add(cell, f"out_of_memory_{mode}", error.limit / MIB)
                continue
            self.calls[cell.name] = run
            self.add(cell, memory, peak / MIB)
            self.add(cell, count, counted / 1e9, source="counted")
            if mode == "inference":
                self.add(cell, "parameters", parameters(stack), source="counted")
            if how.memory is not None:
                self.add(cell, f"largest_batch_{mode}", largest_batch(stack, length, self.network, how, mode))

    def time(self, progress: Callable[[float], None]) -> None:
        """Time the networks by turns."""
        metric, *_ = NAMES[self.mode]
        with torch.inference_mode(self.mode == "inference"):
            self.timings = interleaved(
                self.calls, repeats=self.how.repeats, warmup=1, device=self.device, progress=progress
            )
        for name, timing in self.timings.items():
            # The spread is the whole range: quartiles do not show how much a shared machine changes within a minute.
            spread = max(timing.samples) - min(timing.samples)
            self.add(self.by_name[name], metric, 1e3 * timing.median, spread=1e3 * spread)

    def read_energy(self, country: str, progress: Callable[[float], None]) -> None:
        """Read or estimate what the networks spend, and its CO2 in a country."""
        *_, energy = NAMES[self.mode]
        milliseconds = {name: 1e3 * timing.median for name, timing in self.timings.items()}
        training = self.mode == "training"
        for name, spent in energy_of(
            self.calls, milliseconds, country, training=training, turns=1, progress=progress
        ).items():  # fmt: skip
            self.add(self.by_name[name], energy, spent.mwh, source=spent.source, by=spent.by)
            self.add(self.by_name[name], f"co2_{self.mode}", spent.co2_mg, source=spent.source, by=spent.by)

    def rated(self) -> list[tuple[Cell, Record]]:
        """All records with their ratios."""
        metric, *_ = NAMES[self.mode]
        # The bytes at which memory ran out are no cost that could be compared: they have no ratio.
        ended = [entry for entry in self.records if entry[1].metric.startswith("out_of_memory")]
        rest = [entry for entry in self.records if entry not in ended]
        rated = with_ratios([record for _, record in rest], BASELINE, across=("rank",))
        records = [*ended, *zip((cell for cell, _ in rest), rated, strict=True)]
        return [
            (cell, _paired(record, self.timings, cell) if record.metric == metric else record)
            for cell, record in records
        ]


def _peak(run: Callable[[], object], device: torch.device, how: How) -> float:
    """Bytes that a run takes at most; what compiling takes, in the first one, is none of these."""
    if how.compiled:
        run()
    return peak_memory(run, device)


def _paired(record: Record, timings: Mapping[str, Timing], cell: Cell) -> Record:
    """A record of time whose ratio is the median of the rounds' ratios: other load slows both networks of a round."""
    if BASELINE not in timings:
        return record
    rounds = zip(timings[BASELINE].samples, timings[cell.name].samples, strict=True)
    return replace(record, ratio=median(dense / own for dense, own in rounds))


class Compiled(nn.Module):
    """A network as torch compiles it, however many others are: beyond 8 torch would run it as it is, without a word.

    Args:
        network: The network.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        # For its own sizes, whatever others were compiled for before: those of a network measured alone.
        self.network = torch.compile(network, dynamic=False)

    def forward(self, *given: Any, **named: Any) -> Any:
        """The output of the network.

        Raises:
            torch._dynamo.exc.FailOnRecompileLimitHit: Too many networks were compiled.
        """
        config: Any = torch.compiler.config
        with config.patch(recompile_limit=NETWORKS, fail_on_recompile_limit_hit=True):
            return self.network(*given, **named)


def call(stack: nn.Module, x: Tensor, mode: str, *, compiled: bool = False) -> Callable[[], object]:
    """A function that runs a forward pass without gradients, or, in training, a forward and a backward pass.

    Args:
        stack: Network, (B, N, d) to (B, N, d).
        x: Input (B, N, d).
        mode: "inference" or "training".
        compiled: Whether the network runs as compiled by torch.compile.
    """
    run = Compiled(stack) if compiled else stack
    subject = Subject(stack, call_of(run, x))
    if mode == "training":
        return subject.step

    def forward() -> Tensor:
        with torch.inference_mode():
            return subject.forward()

    return forward


def largest_batch(stack: nn.Module, length: int, network: Network, how: How, mode: str) -> int:
    """The largest number of sequences whose peak memory, weights included, is within `how.memory`, to 2 %.

    It is 0 where not even one sequence fits.

    Args:
        stack: Network, on its device.
        length: Tokens in a sequence, N.
        network: Sizes of the network.
        how: Way of measuring, with bytes of memory.
        mode: "inference" or "training".
    """
    assert how.memory is not None
    device = torch.device(how.device)
    room = how.memory - sum(p.numel() * p.element_size() for p in stack.parameters())

    def fits(batch: int) -> bool:
        x = torch.randn(batch, length, network.hidden, device=device, dtype=DTYPES[how.precision])
        run = call(stack, x, mode, compiled=how.compiled)
        try:
            return x.numel() * x.element_size() + attempt(lambda: _peak(run, device, how), device) <= room
        except OutOfMemory:
            return False

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
