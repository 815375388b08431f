"""The cost of a training run in compute, money, energy and CO2, and of a variant of it that is faster.

A base run is published (`published.py`) or estimated from its FLOPs and its hardware (`estimate`). A variant's costs
are the base's divided by its efficiency factor (`efficiency.py`).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from greenformers.measure.carbon import grid_intensity
from greenformers.measure.record import Record, with_ratios

PETAFLOPS_DAY = 1e15 * 24 * 3600
"""FLOPs of one petaflop/s-day."""

PUE = 1.58
"""Power usage effectiveness: energy of a data centre over that of its computers, mean of 2018. Strubell 2019."""


@dataclass(frozen=True)
class Range:
    """The low and the high end of a figure.

    Raises:
        ValueError: not 0 <= low <= high, or not finite.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high < math.inf:
            raise ValueError(f"a range must be 0 <= low <= high, and finite; got {self.low} to {self.high}")

    def __mul__(self, factor: float) -> "Range":
        return Range(self.low * factor, self.high * factor)


@dataclass(frozen=True)
class Cost:
    """What a training run costs; None for what is not known.

    Attributes:
        petaflops_days: compute, in petaflop/s-days.
        usd: price in US dollars.
        co2_kg: CO2 equivalent in kg.
        kwh: energy in kWh, data centre included.
        hours: time in hours.
    """

    petaflops_days: Range | None = None
    usd: Range | None = None
    co2_kg: float | None = None
    kwh: float | None = None
    hours: float | None = None

    def faster(self, efficiency: float) -> "Cost":
        """The cost of a run that is `efficiency` times faster on the same hardware: all of it is divided.

        Raises:
            ValueError: efficiency is not above 0, or not finite.
        """
        share = 1 / positive("efficiency", efficiency)
        return Cost(*(None if figure is None else figure * share for figure in vars(self).values()))

    def at(self, country: str) -> "Cost":
        """The same energy from another country's grid.

        Raises:
            ValueError: the energy is not known, or the country (see `measure.carbon.grid_intensity`).
        """
        intensity = grid_intensity(country)
        if self.kwh is None:
            raise ValueError(f"the energy of this run is not known, so neither is its CO2 in {country}")
        return Cost(**{**vars(self), "co2_kg": co2_kg(self.kwh, intensity)})


@dataclass(frozen=True)
class Hardware:
    """What a run is computed on. The defaults are one NVIDIA A100 (SXM), of which 40 % is used.

    Attributes:
        peak: TFLOP/s of one device in the arithmetic of the run.
        utilisation: share of the peak that is reached, in (0, 1].
        devices: how many.
        watts: drawn by one device, with its part of the host.
        usd_per_hour: price of one device; None if not known.

    Raises:
        ValueError: a figure is out of its range.
    """

    peak: float = 312.0
    utilisation: float = 0.4
    devices: int = 1
    watts: float = 400.0
    usd_per_hour: Range | None = None

    def __post_init__(self) -> None:
        positive("peak", self.peak)
        positive("watts", self.watts)
        if not 0 < self.utilisation <= 1:
            raise ValueError(f"utilisation must be in (0, 1], got {self.utilisation}")
        if self.devices < 1:
            raise ValueError(f"devices must be at least 1, got {self.devices}")


def training_flops(parameters: float, tokens: float) -> float:
    """6 P T: forward and backward pass of P parameters over T tokens. Kaplan 2020, arXiv:2001.08361, section 2.1.

    Leaves out the scores of attention: at length N and width d, N / (6 d) as much again, half of that if causal.

    Raises:
        ValueError: a count is not above 0, or not finite.
    """
    return 6 * positive("parameters", parameters) * positive("tokens", tokens)


def estimate(flops: float, hardware: Hardware, *, pue: float = PUE, intensity: float) -> Cost:
    """The cost of a run from its FLOPs and what it runs on.

    Args:
        flops: of the whole run.
        hardware: of the run.
        pue: power usage effectiveness of the data centre, at least 1.
        intensity: of the grid, in g of CO2 per kWh (see `measure.carbon.grid_intensity`).

    Raises:
        ValueError: a figure is out of its range.
    """
    used = hardware.devices * hardware.peak * 1e12 * hardware.utilisation
    hours = positive("flops", flops) / used / 3600
    kwh = energy_kwh(hours, hardware.devices * hardware.watts, pue)
    days = flops / PETAFLOPS_DAY
    price = hardware.usd_per_hour
    return Cost(
        petaflops_days=Range(days, days),
        usd=None if price is None else price * (hours * hardware.devices),
        co2_kg=co2_kg(kwh, intensity),
        kwh=kwh,
        hours=hours,
    )


def energy_kwh(hours: float, watts: float, pue: float = PUE) -> float:
    """Energy in kWh of so many hours at so many watts, with what the data centre adds.

    Raises:
        ValueError: hours or watts not above 0, pue below 1, or one not finite.
    """
    if not 1 <= pue < math.inf:
        raise ValueError(f"pue must be at least 1, and finite; got {pue}")
    return positive("hours", hours) * positive("watts", watts) * pue / 1000


def co2_kg(kwh: float, intensity: float) -> float:
    """CO2 equivalent in kg of so many kWh, from a grid of `intensity` g per kWh.

    Raises:
        ValueError: kwh not above 0, intensity below 0, or one not finite.
    """
    if not 0 <= intensity < math.inf:
        raise ValueError(f"intensity must be at least 0 g/kWh, and finite; got {intensity}")
    return positive("kwh", kwh) * intensity / 1000


def records(costs: Mapping[str, Cost], about: dict[str, Any]) -> list[Record]:
    """The costs as records, with ratios to the first of them; of a range both ends.

    Args:
        costs: by name, the base run first.
        about: context of the records.
    """
    base = next(iter(costs))
    found = []
    for name, cost in costs.items():
        figures = {
            "petaflops_days": cost.petaflops_days,
            "usd": cost.usd,
            "co2": cost.co2_kg and cost.co2_kg * 1000,
            "energy": cost.kwh and cost.kwh * 1000,
            "train_time": cost.hours and cost.hours * 3600,
        }
        for metric, figure in figures.items():
            for bound, value in _ends(figure).items():
                setting = {"base": base} | ({"bound": bound} if bound else {})
                found.append(
                    Record.of(
                        metric, value, benchmark="cost", variant=name, setting=setting, source="estimated",
                        context=about,
                    )
                )  # fmt: skip
    return with_ratios(found, base)


def _ends(figure: Range | float | None) -> dict[str, float]:
    if figure is None:
        return {}
    if not isinstance(figure, Range):
        return {"": figure}
    return {"": figure.low} if figure.low == figure.high else {"low": figure.low, "high": figure.high}


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error message: known names that are close to a mistyped one."""
    names = {name.casefold(): name for name in known}
    close = [names[name] for name in get_close_matches(word.casefold(), list(names), cutoff=0.5)]
    return f"; did you mean {' or '.join(close)}?" if close else ""


def positive(name: str, value: float) -> float:
    """The value, if it is above 0 and finite.

    Raises:
        ValueError: it is not.
    """
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be above 0, and finite; got {value}")
    return value
