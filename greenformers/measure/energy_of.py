"""Energy of one call, for several calls side by side."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from greenformers.measure.energy import EnergyMeter

SECONDS = 1.5
"""Seconds of work between two readings."""
TURNS = 3
"""Readings of each call."""


class Spent(NamedTuple):
    """Energy of a call.

    Attributes:
        mwh: Energy in milliwatt-hours.
        co2_mg: CO2 equivalent in milligrams, at the mean carbon intensity of the country's electricity.
        source: "measured" or "estimated".
        by: Sources of the energy, in words; see `EnergyMeter`.
    """

    mwh: float
    co2_mg: float
    source: str
    by: str


def energy_of(
    calls: Mapping[str, Callable[[], object]],
    milliseconds: Mapping[str, float],
    country: str = "USA",
    *,
    training: bool = False,
    turns: int = TURNS,
    seconds: float | None = None,
    progress: Callable[[float], None] = lambda _: None,
) -> dict[str, Spent]:
    """The energy of one run of each call, by name. Calls are read in turns, so that other load falls on all alike.

    Args:
        calls: Calls, by name.
        milliseconds: Milliseconds of one run of each call, by name.
        country: Country of the electricity, a 3-letter ISO code.
        training: Whether gradients are recorded.
        turns: Readings of each call.
        seconds: Seconds of work between two readings, at least one run; by default `SECONDS`.
        progress: Function that is called before each reading with the share of the readings that is done.

    Raises:
        ValueError: Raised where there is no figure for the country.
    """
    spent, co2 = dict.fromkeys(calls, 0.0), dict.fromkeys(calls, 0.0)
    sources: dict[str, tuple[str, str]] = {}
    for turn in range(turns):
        for number, (name, call) in enumerate(calls.items()):
            progress((turn + number / len(calls)) / turns)
            runs = max(1, round(1000 * (SECONDS if seconds is None else seconds) / milliseconds[name]))
            with torch.inference_mode(not training), EnergyMeter(country) as meter:
                for _ in range(runs):
                    call()
            spent[name] += 1000 * meter.energy_wh / runs / turns
            co2[name] += 1000 * meter.co2_g / runs / turns
            sources[name] = (meter.source, meter.by)
    return {name: Spent(spent[name], co2[name], *sources[name]) for name in calls}
