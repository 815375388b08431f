"""Energy and CO2 of a block of work by codecarbon, which the extra `energy` installs."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from greenformers._extras import needed
from greenformers.measure._codecarbon import cpu_readings, start_sampling, stop_sampling
from greenformers.measure.energy import EnergyMeter


class CodecarbonMeter(EnergyMeter):
    """An `EnergyMeter` that reads by codecarbon, which also knows meters of Windows and macOS, AMD GPUs and SLURM jobs.

    Settings that users have made for codecarbon themselves (watts of their CPU, power usage effectiveness) hold, except
    the country, which is the argument.

    Raises:
        ValueError: Raised where there is no figure for `country`, a 3-letter ISO code.
        MissingExtraError: Raised where codecarbon is not installed.
    """

    def __init__(self, country: str = "USA") -> None:
        super().__init__(country)
        self._codecarbon: Any = needed("a reading of codecarbon", "energy", "codecarbon")
        # Importing codecarbon sets the level of its logger, so this comes after.
        logging.getLogger("codecarbon").setLevel(logging.ERROR)

    def _begin(self) -> None:
        self._tracker = _tracker(self._codecarbon, self.country)
        # A task, as start() ... stop() would count codecarbon's own start and drop the last 50 ms.
        self._tracker.start_task()
        # Tasks do not read once a second, but long ones need it: RAPL counters wrap round within minutes.
        start_sampling(self._tracker)

    def _end(self) -> None:
        stop_sampling(self._tracker)
        data = self._tracker.stop_task()
        self.energy_wh = data.energy_consumed * 1000  # from kWh
        self.co2_g = data.emissions * 1000  # from kg
        readings = cpu_readings(self._tracker)
        self.source, self.metered = _source(readings, data)
        self.by = f"codecarbon {version('codecarbon')} ({', '.join(sorted(set(readings)))})"


def _tracker(codecarbon: Any, country: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tracker = codecarbon.OfflineEmissionsTracker(
            country_iso_code=country,
            log_level="error",
            # The rest is set so that no setting of the user's leads to a file, to the network or to another country.
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
    """Whether all processors were metered, and the metered share of the energy, from codecarbon's readings and data."""
    cpu_metered = bool(readings) and all(mode in _METERED_CPU for mode in readings) and data.cpu_energy > 0
    # codecarbon knows GPUs only through their meters.
    energy = data.gpu_energy + (data.cpu_energy if cpu_metered else 0.0)
    share = energy / data.energy_consumed if data.energy_consumed else 0.0
    return ("measured" if cpu_metered else "estimated"), share
