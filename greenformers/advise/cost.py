"""The cost of a training run, and of a faster variant of it, in compute, money, energy and CO2.

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
"""FLOPs in one petaflop/s-day."""

PUE = 1.58
"""Power usage effectiveness: energy of a data centre over that of its computers, mean of 2018. Strubell 2019."""


@dataclass(frozen=True)
class Range:
    """The low and the high end of a figure.

    Raises:
        ValueError: Raised where not 0 <= low <= high, or an end is not finite.
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
    """Cost of a training run; None for a figure that is not known.

    Attributes:
        petaflops_days: Compute in petaflop/s-days.
        usd: Price in US dollars.
        co2_kg: CO2 equivalent in kg.
        kwh: Energy in kWh, data centre included.
        hours: Time in hours.
    """

    petaflops_days: Range | None = None
    usd: Range | None = None
    co2_kg: float | None = None
    kwh: float | None = None
    hours: float | None = None

    def faster(self, efficiency: float) -> "Cost":
        """The cost of a run that is `efficiency` times faster on the same hardware: all of it is divided.

        Raises:
            ValueError: Raised where efficiency is not above 0, or not finite.
        """
        share = 1 / positive("efficiency", efficiency)
        return Cost(*(None if figure is None else figure * share for figure in vars(self).values()))

    def at(self, country: str) -> "Cost":
        """The cost of the same energy from another country's grid.

        Args:
            country: Country of the electricity, a 3-letter ISO code.

        Raises:
            ValueError: Raised where the energy is not known, or there is no figure for the country.
        """
        intensity = grid_intensity(country)
        if self.kwh is None:
            raise ValueError(f"the energy of this run is not known, so neither is its CO2 in {country}")
        return Cost(**{**vars(self), "co2_kg": co2_kg(self.kwh, intensity)})


@dataclass(frozen=True)
class Hardware:
    """Hardware of a run. The defaults are one NVIDIA A100 (SXM), of whose peak 40 % is reached.

    Attributes:
        peak: TFLOP/s of one device in the arithmetic of the run.
        utilisation: Share of the peak that is reached, in (0, 1].
        devices: Number of devices.
        watts: Watts of one device, with its part of the host.
        usd_per_hour: Price of one device in US dollars an hour; None if not known.

    Raises:
        ValueError: Raised where a figure is out of its range.
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

    The scores of attention are left out: at length N and width d, N / (6 d) as much again, half of that if causal.

    Args:
        parameters: Number of parameters P.
        tokens: Number of tokens T in all steps.

    Raises:
        ValueError: Raised where a count is not above 0, or not finite.
    """
    return 6 * positive("parameters", parameters) * positive("tokens", tokens)


def estimate(flops: float, hardware: Hardware, *, pue: float = PUE, intensity: float) -> Cost:
    """The cost of a run, from its FLOPs and its hardware.

    Args:
        flops: FLOPs of the whole run.
        hardware: Hardware of the run.
        pue: Power usage effectiveness of the data centre, at least 1.
        intensity: Carbon intensity of the grid, in g of CO2 per kWh (see `measure.carbon.grid_intensity`).

    Raises:
        ValueError: Raised where a figure is out of its range.
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
    """Energy in kWh, data centre included.

    Args:
        hours: Time in hours.
        watts: Power of the computers in watts.
        pue: Power usage effectiveness of the data centre, at least 1.

    Raises:
        ValueError: Raised where hours or watts are not above 0, pue is below 1, or a figure is not finite.
    """
    if not 1 <= pue < math.inf:
        raise ValueError(f"pue must be at least 1, and finite; got {pue}")
    return positive("hours", hours) * positive("watts", watts) * pue / 1000


def co2_kg(kwh: float, intensity: float) -> float:
    """CO2 equivalent in kg.

    Args:
        kwh: Energy in kWh.
        intensity: Carbon intensity of the grid, in g of CO2 per kWh.

    Raises:
        ValueError: Raised where kwh is not above 0, intensity is below 0, or a figure is not finite.
    """
    if not 0 <= intensity < math.inf:
        raise ValueError(f"intensity must be at least 0 g/kWh, and finite; got {intensity}")
    return positive("kwh", kwh) * intensity / 1000


def records(costs: Mapping[str, Cost], about: dict[str, Any]) -> list[Record]:
    """Records of costs, with ratios to the first of them; a range has a record for each end.

    Args:
        costs: Costs by name of the run, the base run first.
        about: Context of the records.
    """
    base = next(iter(costs))
    rows = []
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
                rows.append(
                    Record.of(
                        metric, value, benchmark="cost", variant=name, setting=setting, source="estimated",
                        context=about,
                    )
                )  # fmt: skip
    return with_ratios(rows, base)


def _ends(figure: Range | float | None) -> dict[str, float]:
    if figure is None:
        return {}
    if not isinstance(figure, Range):
        return {"": figure}
    return {"": figure.low} if figure.low == figure.high else {"low": figure.low, "high": figure.high}


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """The end of an error message: names that are close to a mistyped one; empty where none is.

    Args:
        word: Name as typed.
        names: Names that there are.
    """
    by_folded = {name.casefold(): name for name in names}
    close = [by_folded[name] for name in get_close_matches(word.casefold(), list(by_folded), cutoff=0.5)]
    return f"; did you mean {' or '.join(close)}?" if close else ""


def positive(name: str, value: float) -> float:
    """The value, which is checked to be above 0 and finite.

    Args:
        name: Name of the figure, for the message.
        value: The figure.

    Raises:
        ValueError: Raised where it is not.
    """
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be above 0, and finite; got {value}")
    return value
