"""Energy and CO2 of a stretch of work, by codecarbon: from power meters if there are any, else estimated."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch

from greenformers.measure._codecarbon import cpu_readings, energy_mixes, start_sampling, stop_sampling


class EnergyMeter:
    """Energy and CO2 of the work in a `with` block, of the whole machine: processors, GPUs and memory.

    Works without a network, writes no files and logs nothing. Until the block ends, threads of codecarbon
    sample the load once a second, so do not time calls in the same block. Settings that users have made for
    codecarbon themselves (watts of their CPU, power usage effectiveness) are kept.

        with EnergyMeter(country="HKG") as meter:
            train()
        print(meter.energy_wh, meter.co2_g, meter.source)

    Attributes:
        energy_wh: energy in watt-hours; nan until the block ends.
        co2_g: CO2 equivalent in grams, at the country's mean carbon intensity; nan until the block ends.
        source: "measured" if a power meter was read for every processor (RAPL, NVML), else "estimated" from
            the load and rated power of the CPU. Memory has no meter: it counts as constant watts by its size.
        metered: the share of `energy_wh` that comes from power meters, 0 to 1.

    Raises:
        ValueError: codecarbon has no data for `country`, a 3-letter ISO code.
    """

    def __init__(self, country: str = "USA") -> None:
        mixes = energy_mixes()
        # The import of codecarbon, on the way there, is what sets the level of its logger.
        logging.getLogger("codecarbon").setLevel(logging.ERROR)
        if country not in mixes:
            raise ValueError(f"country must be a 3-letter ISO code that codecarbon has data for, got {country!r}")
        self.country = country
        self.energy_wh = math.nan
        self.co2_g = math.nan
        self.source = "estimated"
        self.metered = 0.0

    def __enter__(self) -> EnergyMeter:
        self._tracker = _tracker(self.country)
        _wait_for_gpus()
        # A task and not start() ... stop(), which would count codecarbon's own start and drop the last 50 ms.
        self._tracker.start_task()
        # Long tasks need the periodic reading that tasks leave out: RAPL counters wrap round within minutes.
        start_sampling(self._tracker)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            _wait_for_gpus()
        finally:
            stop_sampling(self._tracker)
            data = self._tracker.stop_task()
        self.energy_wh = data.energy_consumed * 1000  # from kWh
        self.co2_g = data.emissions * 1000  # from kg
        self.source, self.metered = _source(cpu_readings(self._tracker), data)


def _tracker(country: str) -> Any:
    from codecarbon import OfflineEmissionsTracker

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tracker = OfflineEmissionsTracker(
            country_iso_code=country,
            log_level="error",
            # The rest is given so that no setting of the user's leads to a file, the network or elsewhere.
            output_methods=[],
            output_handlers=[],
            emissions_endpoint=None,
            electricitymaps_api_token="",
            allow_multiple_runs=True,
            region=None,
            cloud_provider=None,
            cloud_region=None,
            country_2letter_iso_code=None,
        )
        tracker.get_detected_hardware()  # takes seconds the first time: not to be counted as work
    return tracker


# CPU modes of codecarbon that read a meter; the others ("cpu_load", "constant") model the rated power.
_METERED_CPU = ("intel_rapl", "intel_power_gadget", "windows_emi")


def _source(readings: Sequence[str], data: Any) -> tuple[str, float]:
    """Tell whether all processors were metered, and what share of the energy; arguments are codecarbon's."""
    cpu_metered = bool(readings) and all(mode in _METERED_CPU for mode in readings) and data.cpu_energy > 0
    # codecarbon knows GPUs only through their meters.
    energy = data.gpu_energy + (data.cpu_energy if cpu_metered else 0.0)
    share = energy / data.energy_consumed if data.energy_consumed else 0.0
    return ("measured" if cpu_metered else "estimated"), share


def _wait_for_gpus() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
