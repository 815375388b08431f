"""What tells how much energy a part of the machine has taken: power meters, and models where there are none.

Each has `joules()`: the energy since the reading before, or since it was made. RAPL: Khan 2018, 10.1145/3177754.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import psutil

from greenformers.measure.rated_power import memory_watts, processor, processor_watts, rated_watts, sockets

POWERCAP = Path("/sys/class/powercap")
SAME = 1_000_000
"""Microjoules by which two readings of one counter may differ: they are not of the same moment."""


class Meter(Protocol):
    """A part of the machine.

    Attributes:
        by: What its energy comes from, in words.
        measured: Whether that is a power meter.
    """

    by: str
    measured: bool

    def joules(self) -> float:
        """Energy since the reading before."""
        ...


class Load:
    """Processors by their load and rated power, see `rated_power`."""

    by = "load and rated power"
    measured = False

    def __init__(self) -> None:
        self._watts = rated_watts(processor(), psutil.cpu_count() or 1, sockets())
        self._times, self._at = psutil.cpu_times(), perf_counter()

    def joules(self) -> float:
        """Energy since the reading before."""
        times, at = psutil.cpu_times(), perf_counter()
        share, seconds = _load(self._times, times), at - self._at
        self._times, self._at = times, at
        return processor_watts(self._watts, share) * seconds


def _load(before: Any, after: Any) -> float:
    """The share of the time between two readings that was spent working; 0 where no time has passed."""

    def spent(times: Any) -> tuple[float, float]:
        # The time of guests is part of that of users.
        whole = sum(times) - getattr(times, "guest", 0) - getattr(times, "guest_nice", 0)
        return whole, whole - times.idle - getattr(times, "iowait", 0)

    (whole, busy), (whole_before, busy_before) = spent(after), spent(before)
    return min(1.0, max(0.0, (busy - busy_before) / (whole - whole_before))) if whole > whole_before else 0.0


class Memory:
    """Memory, which has no meter: constant watts by its size, see `rated_power`."""

    by = "size of memory"
    measured = False

    def __init__(self) -> None:
        arm = any(name in platform.machine().lower() for name in ("arm", "aarch"))
        self._watts = memory_watts(psutil.virtual_memory().total / 2**30, arm=arm)
        self._at = perf_counter()

    def joules(self) -> float:
        """Energy since the reading before."""
        at = perf_counter()
        seconds, self._at = at - self._at, at
        return self._watts * seconds


class Rapl:
    """Processors by the energy counters of their packages, which wrap round: to be read within minutes.

    Raises:
        OSError: no counter can be read; there are none, or only the administrator may.
    """

    by = "RAPL"
    measured = True

    def __init__(self, folder: Path = POWERCAP) -> None:
        self._counters = [_Counter(zone) for zone in _zones(folder)]
        if not self._counters:
            raise FileNotFoundError(f"{folder} has no energy counter of a processor")

    def joules(self) -> float:
        """Energy since the reading before."""
        return _once([(counter.value, counter.spent()) for counter in self._counters]) / 1e6


class _Counter:
    """One counter, in microjoules."""

    def __init__(self, zone: Path) -> None:
        self._file = zone / "energy_uj"
        self._range = int((zone / "max_energy_range_uj").read_text())
        self.value = int(self._file.read_text())

    def spent(self) -> int:
        before, self.value = self.value, int(self._file.read_text())
        return self.value - before + (self._range if self.value < before else 0)


def _zones(folder: Path) -> list[Path]:
    """The zones of whole packages, else of the whole platform; of two ways to read one of them, the memory-mapped."""
    by_name: dict[str, Path] = {}
    for zone in sorted(folder.glob("intel-rapl*:*")):  # "intel-rapl-mmio:0" sorts first
        name = (zone / "name").read_text().strip()
        if zone.name.count(":") == 1:
            by_name.setdefault(name, zone)
    packages = [zone for name, zone in by_name.items() if name.startswith("package")]
    return packages or [zone for name, zone in by_name.items() if name == "psys"]


def _once(readings: Sequence[tuple[int, int]]) -> int:
    """The sum of what counters have counted, one of them that is shown several times counted once.

    Args:
        readings: Value before, and what was counted since.
    """
    different: list[tuple[int, int]] = []
    for value, spent in readings:
        if not any(abs(value - other) <= SAME and abs(spent - counted) <= SAME for other, counted in different):
            different.append((value, spent))
    return sum(spent for _, spent in different)


class Gpus:
    """NVIDIA GPUs by the energy counters that NVML gives, all that the system shows.

    Raises:
        ImportError: pynvml, which the extra `energy` brings, is not installed.
        OSError: there is no driver, no GPU, or one without a counter.
    """

    by = "NVML"
    measured = True

    def __init__(self) -> None:
        import pynvml

        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(at) for at in range(pynvml.nvmlDeviceGetCount())]
            self._before = self._millijoules()
        except pynvml.NVMLError as error:
            raise OSError(f"NVML: {error}") from error
        if not self._handles:
            raise OSError("NVML: no GPU")

    def joules(self) -> float:
        """Energy since the reading before."""
        before, self._before = self._before, self._millijoules()
        return (self._before - before) / 1e3

    def _millijoules(self) -> int:
        return sum(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in self._handles)


def meters() -> list[Meter]:
    """The processors, the memory and, where their counters can be read, the GPUs of this machine."""
    found: list[Meter] = []
    try:
        found.append(Rapl())
    except (OSError, ValueError):
        found.append(Load())
    with suppress(ImportError, OSError):
        found.append(Gpus())
    return [*found, Memory()]
