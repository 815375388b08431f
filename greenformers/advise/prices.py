"""Seconds from amounts of work, by three rates of the machine that take half a second to measure.

    time = sum over kinds of work of amount x multiple x rate

The rates are those of a large matrix product, of reading and writing in order, and of starting small operations. How
many times as dear as these each kind of work is, is known from `python benchmarks/recommend.py --multiples`, which
measures networks of all variants and fits, and so is how far off times then are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from greenformers.measure.latency import interleaved
from greenformers.measure.trace import Work

KINDS = (*Work.FEATURES, "layers")
"""Kinds of work, in the order of `Amount.features`."""

RATE_OF = {
    "wide": "multiply", "narrow": "multiply", "batched": "multiply", "moved": "stream", "attention": "multiply",
    "scores": "stream", "exponential": "stream", "gathered": "stream", "sorted": "stream", "elementwise": "stream",
    "operations": "operation", "layers": "operation",
}  # fmt: skip
"""The rate by which each kind of work goes."""

MULTIPLES: dict[str, tuple[float, ...]] = {
    "inference": (0.985, 0.782, 1.22, 1.17, 0.87, 12.9, 2.83, 0.0, 50.9, 1.53, 4.65, 0.4),
    "training": (0.797, 0.149, 0.857, 4.14, 0.74, 26.4, 3.05, 1.12, 177.0, 0.199, 6.17, 0.67),
}
"""Multiples of the rates, by mode, in the order of `KINDS`."""

ERRORS = {"inference": 0.13, "training": 0.15}
"""Median error of times by these, of networks that they were not fitted to."""

REPEATS = 7
SIDE, LONG, SMALL = 768, 2**22, 64
"""Sides of the matrices of the product, numbers that are read and written, and of a small operation's tensor."""
OPERATIONS = 100
"""Small operations that are started in a row."""


@dataclass(frozen=True)
class Rates:
    """Rates of a machine.

    Attributes:
        multiply: Seconds of 1e9 FLOPs of a large matrix product.
        stream: Seconds of 1e9 bytes that are read or written in order.
        operation: Seconds of 1,000 small operations.
    """

    multiply: float
    stream: float
    operation: float


@dataclass(frozen=True)
class Prices:
    """Prices of one mode.

    Attributes:
        seconds: Seconds of a unit of each of `KINDS`.
        error: Median relative error of a time by these prices.
    """

    seconds: tuple[float, ...]
    error: float

    def time(self, amounts: Sequence[float]) -> float:
        """Seconds of a call, from its amounts of each kind of work."""
        return float(np.dot(self.seconds, amounts))


def rates(device: str = "cpu") -> Rates:
    """The rates of this machine, measured.

    Args:
        device: Device to measure on.
    """
    with torch.inference_mode():
        a, b = torch.randn(2, SIDE, SIDE, device=device)
        long, small = torch.randn(LONG, device=device), torch.randn(SMALL, device=device)

        def started() -> None:
            x = small
            for _ in range(OPERATIONS):
                x = x + small

        calls: dict[str, Callable[[], object]] = {
            "multiply": lambda: a @ b, "stream": lambda: long + 1.0, "operation": started,
        }  # fmt: skip
        times = interleaved(calls, repeats=REPEATS, warmup=2, device=device)
    least = {name: min(timing.samples) for name, timing in times.items()}
    return Rates(
        least["multiply"] / (2 * SIDE**3 / 1e9), least["stream"] / (8 * LONG / 1e9),
        least["operation"] / (OPERATIONS / 1e3),
    )  # fmt: skip


def prices(machine: Rates) -> dict[str, Prices]:
    """Prices of each mode by the rates of a machine."""
    by = [getattr(machine, RATE_OF[kind]) for kind in KINDS]
    return {
        mode: Prices(tuple(rate * multiple for rate, multiple in zip(by, multiples, strict=True)), ERRORS[mode])
        for mode, multiples in MULTIPLES.items()
    }
