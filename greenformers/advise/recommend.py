"""Advice on variants: candidates ranked by predicted time, with bytes of memory, parameters, reason and evidence.

Cahyawijaya 2021, 3.3, advises on one GPU: the Low-Rank Transformer (LRT) up to N = 512, Linformer beyond.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import torch

from greenformers.advise.calibration import Prices, amounts
from greenformers.measure.bench import NAMES
from greenformers.measure.device import device_of
from greenformers.measure.grid import BASELINE, Cell, Network, Stack, cells, possible, variants
from greenformers.measure.parameters import parameters
from greenformers.measure.record import Record

PUBLISHED_CHANGE = 512
"""Length up to which LRT is faster than Linformer in Cahyawijaya 2021."""
LENGTHS = (128, 256, 512, 1024, 2048, 4096)
"""Lengths at which both are compared on this machine."""


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
        evidence: Source of the time, "measured here" or "interpolated".
        memory: Bytes of weights and peak of other tensors, in training with gradients; computed from shapes.
        parameters: Number of parameters of the layers.
        refused: Reason why the candidate cannot be used, else None.
        reason: Comparison with the dense network.
    """

    cell: Cell
    seconds: float
    evidence: str
    memory: float
    parameters: int
    refused: str | None = None
    reason: str = ""


def recommend(
    need: Need,
    prices: Mapping[str, Prices],
    ranks: Sequence[int] = (64, 128),
    names: Sequence[str] | None = None,
    records: Sequence[Record] = (),
    progress: Callable[[str, float], None] = lambda *_: None,
) -> list[Row]:
    """All candidates, the fastest first; those that cannot be used stand last.

    Args:
        need: Network, input and limits.
        prices: Prices by mode, see `greenformers.advise.calibration.calibrate`.
        ranks: Ranks of low-rank linear layers, and of mechanisms with such an option.
        names: Names of variants; by default all.
        records: Records of `bench` from this machine, whose times replace predicted ones of the same cell and setting.
        progress: Function that is called with a text and the share that is done.

    Raises:
        ValueError: Raised where a size is out of range.
    """
    chosen = list(variants()) if names is None else list(names)
    reasons = {name: possible(name, need.network.causal) for name in chosen}
    can = [name for name in chosen if reasons[name] is None and name != BASELINE]
    candidates = [cell for cell in cells(can, [need.length], ranks, need.network) if "eager" not in cell.variant]
    rows = []
    for number, cell in enumerate(candidates):
        rows.append(_row(need, cell, prices[need.mode], records))
        progress("predicting", (number + 1) / len(candidates))
    rows.sort(key=lambda row: (row.refused is not None, row.seconds))
    dense = next(row for row in rows if row.cell.variant == BASELINE)
    rows = [row if row.refused else replace(row, reason=_reason(row, dense)) for row in rows]
    return rows + [
        Row(Cell(name, None, need.length), float("nan"), "", float("nan"), 0, refused=reason)
        for name, reason in reasons.items()
        if reason is not None
    ]


def _row(need: Need, cell: Cell, prices: Prices, records: Sequence[Record]) -> Row:
    amount, work = amounts(need.network, cell, need.batch, need.mode, need.device)
    with torch.device("meta"):
        stack = Stack(need.network, cell)
    weights = sum(p.numel() * p.element_size() for p in stack.parameters())
    memory = weights + work.peak  # the peak includes gradients
    seconds, evidence = prices.time(amount), "interpolated"
    for record in records:
        if _same(record, need, cell):
            seconds, evidence = record.value / 1e3, "measured here"
    refused = None
    if need.memory is not None and memory > need.memory:
        refused = f"needs {memory / 2**20:.0f} MiB, more than {need.memory / 2**20:.0f} MiB"
    return Row(cell, seconds, evidence, memory, parameters(stack), refused)


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
        prices: Prices by mode, see `greenformers.advise.calibration.calibrate`.
        rank: Rank of LRT, and projected length k of Linformer.
    """
    rank = min(rank, need.network.hidden, need.network.feed_forward)
    if reason := possible("linformer", need.network.causal):
        return f"The choice between the Low-Rank Transformer and Linformer (Cahyawijaya 2021) does not arise: {reason}."
    ahead, both = [], []
    lengths = [length for length in LENGTHS if length >= rank]
    for length in lengths:
        at = replace(need, length=length, batch=max(1, need.length * need.batch // length))
        times = {
            name: prices[need.mode].time(amounts(at.network, Cell(name, rank, length), at.batch, at.mode, at.device)[0])
            for name in ("lrt", "linformer", "lrt+linformer")
        }
        if times["lrt"] <= times["linformer"]:
            ahead.append(length)
        if times["lrt+linformer"] <= min(times.values()):
            both.append(length)
    if not lengths:
        return f"At rank {rank} no length is long enough for Linformer."
    last = max(ahead, default=0)
    end = f"up to N {last}" if ahead else "at no length"
    place = "the same" if last == PUBLISHED_CHANGE else "later" if last > PUBLISHED_CHANGE else "earlier"
    together = f"from N {min(both)}" if both else "at no length"
    return (
        f"At rank {rank} and N {lengths[0]} to {lengths[-1]}, the Low-Rank Transformer is faster than Linformer {end} "
        f"(up to N {PUBLISHED_CHANGE} in Cahyawijaya 2021: the change is {place} here). "
        f"Both together are the fastest {together}."
    )
