"""Which variant to use: candidates ranked by predicted time, with memory, parameters, the reason and the evidence.

The thesis' finding (3.3), measured on its GPU: LRT for short sequences, up to 512, Linformer beyond.
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

THESIS = 512
"""Up to this length the thesis finds LRT ahead of Linformer."""
LENGTHS = (128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True)
class Need:
    """What is asked for.

    Attributes:
        network: sizes; causal or not.
        length: N.
        batch: B.
        mode: inference or training.
        memory: bytes of weights and tensors together, at most; None for any.
        device: where it is to run.

    Raises:
        ValueError: a value out of range.
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
        cell: variant, rank and length.
        seconds: of a call; nan where nothing can be said.
        evidence: of the time: "measured here" or "interpolated".
        memory: bytes of weights, and peak of other tensors, in training with gradients: arithmetic.
        parameters: of the layers.
        refused: why it cannot be used, else None.
        reason: why it stands where it does.
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
    known: Sequence[Record] = (),
    progress: Callable[[str, float], None] = lambda *_: None,
) -> list[Row]:
    """All candidates, the fastest first; those that cannot be used stand last.

    Args:
        need: what is asked for.
        prices: of `greenformers.advise.calibration.calibrate`.
        ranks: of low-rank maps and of mechanisms with such an option.
        names: variants; by default all.
        known: records of `bench` made on this machine: their times are taken where they are of this very cell.
        progress: called with the share that is done.

    Raises:
        ValueError: a size out of range.
    """
    wanted = list(variants()) if names is None else list(names)
    reasons = {name: possible(name, need.network.causal) for name in wanted}
    can = [name for name in wanted if reasons[name] is None and name != BASELINE]
    candidates = [cell for cell in cells(can, [need.length], ranks, need.network) if "eager" not in cell.variant]
    rows = []
    for number, cell in enumerate(candidates):
        rows.append(_row(need, cell, prices[need.mode], known))
        progress("predicting", (number + 1) / len(candidates))
    rows.sort(key=lambda row: (row.refused is not None, row.seconds))
    dense = next(row for row in rows if row.cell.variant == BASELINE)
    rows = [row if row.refused else replace(row, reason=_reason(row, dense)) for row in rows]
    return rows + [
        Row(Cell(name, None, need.length), float("nan"), "", float("nan"), 0, refused=reason)
        for name, reason in reasons.items()
        if reason is not None
    ]


def _row(need: Need, cell: Cell, prices: Prices, known: Sequence[Record]) -> Row:
    amount, work = amounts(need.network, cell, need.batch, need.mode, need.device)
    with torch.device("meta"):
        stack = Stack(need.network, cell)
    weights = sum(p.numel() * p.element_size() for p in stack.parameters())
    memory = weights + work.peak  # which holds the gradients
    seconds, evidence = prices.time(amount), "interpolated"
    for record in known:
        if _same(record, need, cell):
            seconds, evidence = record.value / 1e3, "measured here"
    refused = None
    if need.memory is not None and memory > need.memory:
        refused = f"needs {memory / 2**20:.0f} MiB, more than {need.memory / 2**20:.0f}"
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
    """Where the thesis' finding holds on this machine: LRT ahead up to 512, Linformer beyond, and both together."""
    rank = min(rank, need.network.hidden, need.network.feed_forward)
    if reason := possible("linformer", need.network.causal):
        return f"The thesis' choice between LRT and Linformer does not arise: {reason}."
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
    holds = "holds" if last == THESIS else f"is {'later' if last > THESIS else 'earlier'} here"
    together = f"both together from N {min(both)}" if both else "both together at no length"
    return (
        f"At rank {rank}, of N {lengths[0]} to {lengths[-1]}, LRT is ahead of Linformer {end} (thesis: {THESIS}; "
        f"the change {holds}); fastest are {together}."
    )
