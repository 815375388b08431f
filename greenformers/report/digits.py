"""Figures as text: in units that suit them, with as many digits as mean something."""

from __future__ import annotations

import math
from collections.abc import Iterable

from greenformers.measure.record import METRICS, Record

# Units that a value may be shown in, smallest first, as multiples of the unit that it is recorded in.
SCALES: dict[str, tuple[tuple[str, float], ...]] = {
    "": (("", 1), ("k", 1e3), ("M", 1e6), ("G", 1e9)),
    "ms": (("µs", 1e-3), ("ms", 1), ("s", 1e3)),
    "s": (("ms", 1e-3), ("s", 1), ("h", 3600)),
    "MiB": (("KiB", 1 / 1024), ("MiB", 1), ("GiB", 1024)),
    "GFLOP": (("MFLOP", 1e-3), ("GFLOP", 1), ("TFLOP", 1e3)),
    "Wh": (("mWh", 1e-3), ("Wh", 1), ("kWh", 1e3)),
    "mWh": (("µWh", 1e-3), ("mWh", 1), ("Wh", 1e3)),
    "g": (("mg", 1e-3), ("g", 1), ("kg", 1e3)),
}


def scale(values: Iterable[float], unit: str) -> tuple[str, float]:
    """The unit in which all of these values are shown, and the factor that they are divided by.

    A row has one unit: the largest in which its smallest value is still at least 1.
    """
    positive = [abs(value) for value in values if value and math.isfinite(value)]
    scales = SCALES.get(unit, ((unit, 1),))
    if not positive:
        return unit, 1
    fitting = [step for step in scales if min(positive) >= step[1]]
    return (fitting or scales)[-1 if fitting else 0]


def label(metric: str, unit: str) -> str:
    """The label of the metric, with the unit in brackets."""
    return f"{METRICS[metric].label} ({unit})" if unit else METRICS[metric].label


def number(value: float) -> str:
    """The value with three significant digits, without an exponent: 0.0123, 12.3, 1,230; n/a where it is not finite."""
    if not math.isfinite(value):
        return "n/a"
    rounded = float(f"{value:.2e}")
    return f"{rounded:,.{decimals(rounded)}f}"


def reference(record: Record) -> float:
    """The baseline's value, computed from the record's ratio to it; the record's own value where it has no ratio."""
    ratio = record.ratio or 1
    return record.value * ratio if METRICS[record.metric].less_is_better else record.value / ratio


def times(ratio: float) -> str:
    """The ratio with two significant digits, or three near 1: 0.048x, 0.95x, 1.04x, 4.2x, 81x."""
    if ratio < 0.1:
        return f"{ratio:.2g}x"
    return f"{ratio:,.{2 if ratio < 1.095 else 1 if ratio < 9.95 else 0}f}x"


def decimals(rounded: float) -> int:
    """The digits behind the point that a value of three significant digits has."""
    return max(0, 2 - math.floor(math.log10(abs(rounded)))) if rounded else 0
