"""Energy and CO2 of a block of work: from power meters where they can be read, else estimated."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from types import TracebackType

import torch

from greenformers.measure.carbon import grid_intensity
from greenformers.measure.meters import Gpus, Memory, Meter, meters

INTERVAL = 1.0
"""Seconds between two readings: the load is taken for constant between them, and counters wrap round within minutes."""
JOULES = 3600.0
"""Joules in a watt-hour."""


class EnergyMeter:
    """Energy and CO2 of the work in a `with` block, of the whole machine: processors, GPUs and memory.

    Processors are read by their energy counters (RAPL) where the system lets them be read, else estimated from their
    load and rated power; NVIDIA GPUs by their counters (NVML), where pynvml is installed; memory by its size. The meter
    never uses codecarbon, so that figures do not depend on whether it is installed; but the model and its figures are
    codecarbon's, and a test shows that both agree within 5 %. `energy_by_codecarbon.CodecarbonMeter` reads by
    codecarbon itself, which knows more systems and settings.

    The meter works without a network, writes no files and logs nothing. Until the block ends a thread reads once a
    second, so do not time calls in the same block.

        with EnergyMeter(country="HKG") as meter:
            train()
        print(meter.energy_wh, meter.co2_g, meter.source, meter.by)

    Attributes:
        energy_wh: Energy in watt-hours; nan until the block ends.
        co2_g: CO2 equivalent in grams, at the country's mean carbon intensity; nan until the block ends.
        source: "measured" if a power meter was read for every processor, else "estimated".
        by: Sources of the energy, in words: "load and rated power, size of memory; GPUs left out".
        metered: Share of `energy_wh` that comes from power meters, 0 to 1.

    Raises:
        ValueError: Raised where there is no figure for `country`, a 3-letter ISO code.
    """

    def __init__(self, country: str = "USA") -> None:
        self._intensity = grid_intensity(country)
        self.country = country
        self.energy_wh = math.nan
        self.co2_g = math.nan
        self.source = "estimated"
        self.by = ""
        self.metered = 0.0

    def __enter__(self) -> EnergyMeter:
        _wait_for_gpus()
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            _wait_for_gpus()
        finally:
            self._end()

    def _begin(self) -> None:
        self._meters = meters()
        for meter in self._meters:
            meter.joules()  # dropped: the energy of looking for the meters
        self._joules = [0.0] * len(self._meters)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="energy", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(INTERVAL):
            self._read()

    def _read(self) -> None:
        self._joules = [spent + meter.joules() for spent, meter in zip(self._joules, self._meters, strict=True)]

    def _end(self) -> None:
        self._ended.set()
        self._thread.join()
        self._read()
        total = sum(self._joules)
        metered = sum(spent for spent, meter in zip(self._joules, self._meters, strict=True) if meter.measured)
        self.energy_wh = total / JOULES
        self.co2_g = self.energy_wh / 1000 * self._intensity
        self.metered = metered / total if total else 0.0
        self.source, self.by = _source(self._meters, gpus=torch.cuda.is_available())


def _source(read: Sequence[Meter], *, gpus: bool) -> tuple[str, str]:
    """The source and the words for it, of the meters that were read; `gpus` tells whether the machine has GPUs.

    Without its GPUs the energy of a machine is no measurement of what a network took.
    """
    measured = all(meter.measured for meter in read if not isinstance(meter, Memory))
    left_out = gpus and not any(isinstance(meter, Gpus) for meter in read)
    by = ", ".join(meter.by for meter in read) + ("; GPUs left out" if left_out else "")
    return ("measured" if measured and not left_out else "estimated"), by


def _wait_for_gpus() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
