"""Meters of the energy that a part of the machine takes: power meters, and models of power where there are none.

Each has `joules()`: the energy since the last reading, or since its construction. RAPL: Khan 2018, 10.1145/3177754.
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
"""Microjoules by which two readings of the same counter may differ, as they are not of the same moment."""


class Meter(Protocol):
    """Meter of one part of the machine.

    Attributes:
        by: Source of the energy, in words.
        measured: Whether the source is a power meter.
    """

    by: str
    measured: bool

    def joules(self) -> float:
        """Energy in joules since the last reading."""
        ...


class Load:
    """Processors, by a model of their load and rated power, see `rated_power`."""

    by = "load and rated power"
    measured = False

    def __init__(self) -> None:
        self._watts = rated_watts(processor(), psutil.cpu_count() or 1, sockets())
        self._times, self._at = psutil.cpu_times(), perf_counter()

    def joules(self) -> float:
        """Energy in joules since the last reading."""
        times, at = psutil.cpu_times(), perf_counter()
        share, seconds = _load(self._times, times), at - self._at
        self._times, self._at = times, at
        return processor_watts(self._watts, share) * seconds


def _load(before: Any, after: Any) -> float:
    """Share of the time between two readings in which the processors worked; 0 where no time has passed."""

    def spent(times: Any) -> tuple[float, float]:
        # The time of virtual guests is part of the time of users.
        whole = sum(times) - getattr(times, "guest", 0) - getattr(times, "guest_nice", 0)
        return whole, whole - times.idle - getattr(times, "iowait", 0)

    (whole, busy), (whole_before, busy_before) = spent(after), spent(before)
    return min(1.0, max(0.0, (busy - busy_before) / (whole - whole_before))) if whole > whole_before else 0.0


class Memory:
    """The machine's memory, which has no power meter: constant watts by its size, see `rated_power`."""

    by = "size of memory"
    measured = False

    def __init__(self) -> None:
        arm = any(name in platform.machine().lower() for name in ("arm", "aarch"))
        self._watts = memory_watts(psutil.virtual_memory().total / 2**30, arm=arm)
        self._at = perf_counter()

    def joules(self) -> float:
        """Energy in joules since the last reading."""
        at = perf_counter()
        seconds, self._at = at - self._at, at
        return self._watts * seconds


class Rapl:
    """Processors, by the energy counters of their packages. These wrap round, and have to be read within minutes.

    Args:
        folder: Folder in which the system shows the counters.

    Raises:
        OSError: Raised where no counter can be read: there are none, or only the administrator may read them.
    """

    by = "RAPL"
    measured = True

    def __init__(self, folder: Path = POWERCAP) -> None:
        self._counters = [_Counter(zone) for zone in _zones(folder)]
        if not self._counters:
            raise FileNotFoundError(f"{folder} has no energy counter of a processor")

    def joules(self) -> float:
        """Energy in joules since the last reading."""
        return _once([(counter.value, counter.spent()) for counter in self._counters]) / 1e6


class _Counter:
    """An energy counter, in microjoules."""

    def __init__(self, zone: Path) -> None:
        self._file = zone / "energy_uj"
        self._range = int((zone / "max_energy_range_uj").read_text())
        self.value = int(self._file.read_text())

    def spent(self) -> int:
        before, self.value = self.value, int(self._file.read_text())
        return self.value - before + (self._range if self.value < before else 0)


def _zones(folder: Path) -> list[Path]:
    """Folders of the packages' counters, else of the platform's; of two folders of one counter the memory-mapped."""
    by_name: dict[str, Path] = {}
    for zone in sorted(folder.glob("intel-rapl*:*")):  # "intel-rapl-mmio:0" sorts first
        name = (zone / "name").read_text().strip()
        if zone.name.count(":") == 1:
            by_name.setdefault(name, zone)
    packages = [zone for name, zone in by_name.items() if name.startswith("package")]
    return packages or [zone for name, zone in by_name.items() if name == "psys"]


def _once(readings: Sequence[tuple[int, int]]) -> int:
    """Sum of the counters' microjoules, in which a counter that the system shows several times counts once.

    Args:
        readings: Value of each counter at the last reading, and its microjoules since.
    """
    different: list[tuple[int, int]] = []
    for value, spent in readings:
        if not any(abs(value - other) <= SAME and abs(spent - counted) <= SAME for other, counted in different):
            different.append((value, spent))
    return sum(spent for _, spent in different)


class Gpus:
    """All NVIDIA GPUs that the system shows, by the energy counters of NVML.

    Raises:
        ImportError: Raised where pynvml, which the extra `energy` installs, is missing.
        OSError: Raised where there is no driver, no GPU, or a GPU without a counter.
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
        """Energy in joules since the last reading."""
        before, self._before = self._before, self._millijoules()
        return (self._before - before) / 1e3

    def _millijoules(self) -> int:
        return sum(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in self._handles)


def meters() -> list[Meter]:
    """Meters of the processors and the memory of this machine and, where their counters can be read, of its GPUs."""
    parts: list[Meter] = []
    try:
        parts.append(Rapl())
    except (OSError, ValueError):
        parts.append(Load())
    with suppress(ImportError, OSError):
        parts.append(Gpus())
    return [*parts, Memory()]
