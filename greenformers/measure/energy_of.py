"""Energy of single calls side by side."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from greenformers.measure.energy import EnergyMeter

SECONDS = 1.5  # of work between two readings
TURNS = 3


class Spent(NamedTuple):
    """Energy of a call.

    Attributes:
        mwh: Milliwatt-hours.
        source: "measured" or "estimated".
        by: What it comes from, in words; see `EnergyMeter`.
    """

    mwh: float
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
    """The energy of one call of each; in turns, so that other load falls on all alike.

    Args:
        calls: what to run, by name.
        milliseconds: how long each takes.
        country: whose electricity, a 3-letter ISO code.
        training: record gradients.
        turns: readings of each.
        seconds: of work between two readings; by default `SECONDS`, and one call at least.
        progress: told the share of the readings that is done, between two of them.
    """
    spent: dict[str, float] = dict.fromkeys(calls, 0.0)
    sources: dict[str, tuple[str, str]] = {}
    for turn in range(turns):
        for number, (name, call) in enumerate(calls.items()):
            progress((turn + number / len(calls)) / turns)
            runs = max(1, round(1000 * (SECONDS if seconds is None else seconds) / milliseconds[name]))
            with torch.inference_mode(not training), EnergyMeter(country) as meter:
                for _ in range(runs):
                    call()
            spent[name] += 1000 * meter.energy_wh / runs / turns
            sources[name] = (meter.source, meter.by)
    return {name: Spent(spent[name], *sources[name]) for name in calls}
