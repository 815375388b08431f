"""Advice on variants: candidates by what they are known to lose, then by time, with memory, parameters and reason.

Times are first those of arithmetic, see `greenformers.advise.prices`; `measured` then times the most promising.
Cahyawijaya 2021, 3.3, advises on one GPU: the Low-Rank Transformer (LRT) up to N = 512, Linformer beyond.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from statistics import median
from time import monotonic

import torch

from greenformers.advise.known import Known, known
from greenformers.advise.prices import Prices
from greenformers.advise.work import Amounts
from greenformers.measure.bench import NAMES, call
from greenformers.measure.device import device_of
from greenformers.measure.grid import BASELINE, Cell, Network, Stack, cells, possible, refusal, variants
from greenformers.measure.latency import interleaved
from greenformers.measure.limit import free
from greenformers.measure.record import Record

PUBLISHED_CHANGE = 512
"""Length up to which LRT is faster than Linformer in Cahyawijaya 2021."""
LENGTHS = (128, 256, 512, 1024, 2048, 4096)
"""Lengths at which both are compared on this machine."""

REPEATS, BESIDE = 5, 5
"""Timed runs of each network, and candidates that are timed at once beside the dense one."""

MEASURED = "measured here"
"""Evidence of a candidate that was timed on this machine."""

HOPEFUL = 2.0
"""Candidates are timed that are expected to take no more than so many times the time of the best of their group."""


@dataclass(frozen=True)
class Need:
    """Need of a user: the network, its input and its limits.

    Attributes:
        network: Sizes of the network, and whether it is causal.
        length: Tokens in a sequence, N.
        batch: Sequences at once, B.
        mode: "inference" or "training".
        memory: Largest number of bytes of weights and other tensors together; None for any.
        device: Device that the network is to run on.

    Raises:
        ValueError: Raised where a value is out of range.
    """

    network: Network
    length: int
    batch: int = 1
    mode: str = "inference"
    memory: float | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        device_of(self.device)
        if self.length < 1 or self.batch < 1:
            raise ValueError(f"length and batch must be at least 1, got {self.length} and {self.batch}")
        if self.memory is not None and not self.memory > 0:
            raise ValueError(f"memory must be positive, got {self.memory / 2**30:g} GiB")


@dataclass(frozen=True)
class Row:
    """One candidate.

    Attributes:
        cell: Variant, rank and length.
        seconds: Seconds of a call; nan for a variant that cannot be.
        evidence: Source of the time: `MEASURED`, "estimated", or "estimated by" a candidate that was measured.
        memory: Bytes of weights and peak of other tensors, in training with gradients; computed from shapes.
        parameters: Number of parameters of the layers.
        refused: Reason why the candidate cannot be used, else None.
        reason: Comparison with the dense network.
        lost: What the variant is known to lose, and what of it was not studied; None for an attention that was not.
    """

    cell: Cell
    seconds: float
    evidence: str
    memory: float
    parameters: int
    refused: str | None = None
    reason: str = ""
    lost: Known | None = None


def recommend(
    need: Need,
    prices: Mapping[str, Prices],
    ranks: Sequence[int] = (64, 128),
    names: Sequence[str] | None = None,
    records: Sequence[Record] = (),
    progress: Callable[[str, float], None] = lambda *_: None,
) -> list[Row]:
    """All candidates by estimated times, see `ordered`; those that cannot be used stand last.

    Args:
        need: Network, input and limits.
        prices: Prices by mode, see `greenformers.advise.prices.prices`.
        ranks: Ranks of low-rank linear layers, and of mechanisms with such an option.
        names: Names of variants; by default all.
        records: Records of `bench` from this machine, whose times replace estimates of the same cell and setting.
        progress: Function that is called with a text and the share that is done.

    Raises:
        ValueError: Raised where a size is out of range.
    """
    chosen = list(variants()) if names is None else list(names)
    reasons = {name: possible(name, need.network.causal) for name in chosen}
    can = [name for name in chosen if reasons[name] is None and name != BASELINE]
    every = [cell for cell in cells(can, [need.length], ranks, need.network) if "eager" not in cell.variant]
    unfit = {cell: reason for cell in every if (reason := refusal(cell, need.network)) is not None}
    candidates = [cell for cell in every if cell not in unfit]
    amounts = Amounts(need.network, need.batch, need.mode, need.device)
    rows = []
    for number, cell in enumerate(candidates):
        rows.append(_row(need, cell, amounts, prices[need.mode], records))
        progress("estimating", (number + 1) / len(candidates))
    unfit |= {Cell(name, None, need.length): reason for name, reason in reasons.items() if reason is not None}
    nan = float("nan")
    return ordered(rows) + [Row(cell, nan, "", nan, 0, refused=reason) for cell, reason in unfit.items()]


def ordered(rows: Sequence[Row]) -> list[Row]:
    """Candidates by what they are known to lose, then the fastest first, each compared with the dense network.

    First those that lost nothing that a study could tell; then those of which a part was not studied; those that lost
    in the mean; and those whose attention compares no two tokens, whatever they lost. The dense network is among the
    first.
    """
    dense = next(row for row in rows if row.cell.variant == BASELINE)
    rows = [row if row.refused else replace(row, reason=_reason(row, dense)) for row in rows]
    return sorted(rows, key=lambda row: (row.refused is not None, group_of(row), row.seconds))


def group_of(row: Row) -> int:
    """The group of a candidate, from 0, see `ordered`."""
    if row.cell.variant == BASELINE:
        return 0
    if row.lost is None:
        return 1
    if row.lost.blind:
        return 3
    if row.lost.worse:  # one part that loses is enough to say so
        return 2
    return 1 if row.lost.unstudied else 0


def measured(
    need: Need, rows: Sequence[Row], seconds: float, progress: Callable[[str, float], None] = lambda *_: None
) -> list[Row]:
    """The same candidates with the most promising timed: one layer of each, beside the dense network's, in turns.

    Those of each group are compared with its best, see `HOPEFUL`, and timed group by group: the fastest of all may be
    one whose attention compares no two tokens. Estimates of the others are corrected by the candidate of the same
    mechanism that was timed, or by all of them.

    Args:
        need: Network, input and limits.
        rows: Candidates as `recommend` gives them.
        seconds: Seconds after which no more are timed.
        progress: Function that is called with a text and the share that is done.
    """
    usable = [row for row in rows if row.refused is None and row.cell.variant != BASELINE]
    best: dict[int, float] = {}
    for row in usable:
        best[group_of(row)] = min(row.seconds, best.get(group_of(row), row.seconds))
    dense = next(row for row in rows if row.cell.variant == BASELINE)
    # A few are in memory side by side, of one layer each.
    room = free(torch.device(need.device)) / 2 * need.network.layers
    if dense.memory > room:
        return list(rows)
    hopeful = [
        row for row in usable
        if row.evidence != MEASURED and row.seconds <= HOPEFUL * best[group_of(row)] and row.memory <= room
    ]  # fmt: skip
    began, times = monotonic(), dict[Cell, float]()
    for start in range(0, len(hopeful), BESIDE):
        if times and monotonic() - began > seconds:
            break
        group = [row.cell for row in hopeful[start : start + BESIDE]]
        own = _timed(need, [dense.cell, *group])
        times[dense.cell] = min(own[dense.cell], times.get(dense.cell, own[dense.cell]))
        times |= {cell: own[cell] / own[dense.cell] for cell in group}  # as times the dense one's beside it
        progress("timing", min(1.0, max((start + BESIDE) / len(hopeful), (monotonic() - began) / seconds)))
    progress("timing", 1.0)
    if not times:
        return list(rows)
    timed = times.pop(dense.cell)
    # Beside times of records stands theirs of the dense network: now the machine may be faster or slower than it was.
    of_dense = dense.seconds if dense.evidence == MEASURED else timed
    times = {cell: ratio * of_dense for cell, ratio in times.items()} | {dense.cell: of_dense}
    rest = [row for row in rows if row.refused is not None and row.parameters == 0]
    return ordered([_corrected(row, rows, times) for row in rows if row not in rest]) + rest


def _timed(need: Need, group: Sequence[Cell]) -> dict[Cell, float]:
    """Seconds of a call of each cell: the least of its repeats of one layer, as other load only adds to it."""
    single = replace(need.network, layers=1)
    # Of several layers all but the first give their input a gradient.
    through = need.mode == "training" and need.network.layers > 1
    x = torch.randn(need.batch, need.length, single.hidden, device=need.device, requires_grad=through)
    calls = {}
    for number, cell in enumerate(group):
        stack = Stack(single, cell).to(need.device).train(need.mode == "training")
        calls[str(number)] = call(stack, x, need.mode)
    with torch.inference_mode(need.mode == "inference"):
        timings = interleaved(calls, repeats=REPEATS, warmup=1, device=need.device)
    return {cell: need.network.layers * min(timings[str(number)].samples) for number, cell in enumerate(group)}


def _corrected(row: Row, rows: Sequence[Row], times: Mapping[Cell, float]) -> Row:
    if row.cell in times:
        return replace(row, seconds=times[row.cell], evidence=MEASURED)
    if row.evidence == MEASURED:
        return row
    off = {other.cell: times[other.cell] / other.seconds for other in rows if other.cell in times}
    mechanism = row.cell.variant.rpartition("+")[2]
    alike = [cell for cell in off if cell.variant.rpartition("+")[2] == mechanism]
    if not alike:
        return replace(row, seconds=row.seconds * median(off.values()), evidence="estimated")
    nearest = min(
        alike, key=lambda cell: (cell.variant != row.cell.variant, abs((cell.rank or 0) - (row.cell.rank or 0)))
    )
    return replace(row, seconds=row.seconds * off[nearest], evidence=f"estimated by {nearest.name}")


def _row(need: Need, cell: Cell, amounts: Amounts, prices: Prices, records: Sequence[Record]) -> Row:
    amount = amounts.of(cell)
    seconds, evidence = prices.time(amount.features), "estimated"
    for record in records:
        if _same(record, need, cell):
            seconds, evidence = record.value / 1e3, MEASURED
    refused = None
    if need.memory is not None and amount.memory > need.memory:
        refused = f"needs {amount.memory / 2**20:.0f} MiB, more than {need.memory / 2**20:.0f} MiB"
    share = None if cell.rank is None else cell.rank / need.network.hidden
    lost = known(cell.variant, causal=need.network.causal, share=share)
    return Row(cell, seconds, evidence, amount.memory, amount.parameters, refused, lost=lost)


def _same(record: Record, need: Need, cell: Cell) -> bool:
    sizes = {name: value for name, value in asdict(need.network).items() if value not in (False, {})}
    setting = {"length": cell.length, "batch": need.batch, "rank": cell.rank, **sizes, "device": need.device}
    return (record.benchmark, record.variant, record.metric, record.setting) == (
        "bench", cell.variant, NAMES[need.mode][0], setting,
    )  # fmt: skip


def _reason(row: Row, dense: Row) -> str:
    if row is dense:
        return "what the others are compared with"
    size, memory = row.parameters / dense.parameters, row.memory / dense.memory
    return f"{dense.seconds / row.seconds:.2g}x as fast, {size:.0%} of the parameters, {memory:.0%} of the memory"


def finding(need: Need, prices: Mapping[str, Prices], rank: int) -> str:
    """A text that says up to which length LRT is faster than Linformer here, and from which both together are.

    Args:
        need: Network, input and limits.
        prices: Prices by mode, see `greenformers.advise.prices.prices`.
        rank: Rank of LRT, and projected length k of Linformer.
    """
    rank = min(rank, need.network.hidden, need.network.feed_forward)
    if reason := possible("linformer", need.network.causal):
        return f"The choice between the Low-Rank Transformer and Linformer (Cahyawijaya 2021) does not arise: {reason}."
    lengths = [length for length in LENGTHS if length >= rank]

    @cache
    def time(name: str, length: int) -> float:
        at = replace(need, length=length, batch=max(1, need.length * need.batch // length))
        amounts = Amounts(at.network, at.batch, at.mode, at.device)
        return prices[need.mode].time(amounts.of(Cell(name, rank, length)).features)

    # The longer texts are, the better for Linformer: each change of order is looked for by halving.
    slower = bisect_left(lengths, True, key=lambda n: time("lrt", n) > time("linformer", n))
    together_at = bisect_left(
        lengths, True, key=lambda n: time("lrt+linformer", n) <= min(time("lrt", n), time("linformer", n))
    )
    if not lengths:
        return f"At rank {rank} no length is long enough for Linformer."
    last = lengths[slower - 1] if slower else 0
    end = f"up to N {last}" if slower else "at no length"
    place = "the same" if last == PUBLISHED_CHANGE else "later" if last > PUBLISHED_CHANGE else "earlier"
    together = f"from N {lengths[together_at]}" if together_at < len(lengths) else "at no length"
    return (
        f"At rank {rank} and N {lengths[0]} to {lengths[-1]}, the Low-Rank Transformer is faster than Linformer {end} "
        f"(up to N {PUBLISHED_CHANGE} in Cahyawijaya 2021: the change is {place} here). "
        f"Both together are the fastest {together}."
    )
