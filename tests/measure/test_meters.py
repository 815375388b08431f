"""Power meters and the model in their place: against files as the system has them, and against codecarbon's model."""

import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from greenformers.measure import meters
from greenformers.measure.meters import Gpus, Load, Memory, Rapl
from greenformers.measure.rated_power import _sockets, memory_watts, processor_watts, rated_watts

WRAPS = 262_143_328_850
"""Microjoules at which a counter begins again."""


def zone(folder: Path, name: str, kind: str, energy: int) -> Path:
    """A counter, as the system shows it."""
    place = folder / name
    place.mkdir()
    (place / "name").write_text(f"{kind}\n")
    (place / "max_energy_range_uj").write_text(f"{WRAPS}\n")
    (place / "energy_uj").write_text(f"{energy}\n")
    return place


def count(place: Path, energy: int) -> None:
    (place / "energy_uj").write_text(f"{energy}\n")


def test_packages_are_counted_and_their_parts_are_not(tmp_path: Path) -> None:
    first = zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 90_000_000)
    others = [
        zone(tmp_path, "intel-rapl:0:0", "core", 7), zone(tmp_path, "intel-rapl:0:1", "dram", 7),
        zone(tmp_path, "intel-rapl:2", "psys", 7),
    ]  # fmt: skip
    meter = Rapl(tmp_path)
    assert meter.joules() == 0
    count(first, 8_000_000)
    count(second, 94_500_000)
    for place in others:
        count(place, 10**9)
    assert meter.joules() == pytest.approx(7.5)
    count(second, 95_500_000)
    assert meter.joules() == pytest.approx(1)


def test_a_counter_that_began_again_is_seen(tmp_path: Path) -> None:
    place = zone(tmp_path, "intel-rapl:0", "package-0", WRAPS - 2_000_000)
    meter = Rapl(tmp_path)
    count(place, 3_000_000)
    assert meter.joules() == pytest.approx(5)


def test_one_counter_that_is_shown_twice_counts_once(tmp_path: Path) -> None:
    shown = [zone(tmp_path, f"intel-rapl{end}:0", "package-0", 10**9) for end in ("", "-mmio")]
    dies = [zone(tmp_path, f"intel-rapl:{die}", f"package-1-die-{die}", 10**10 + die) for die in (1, 2)]
    meter = Rapl(tmp_path)
    for place in shown:
        count(place, 10**9 + 4_000_000)
    for die, place in enumerate(dies):
        count(place, 10**10 + 6_000_000 + die)
    assert meter.joules() == pytest.approx(10, abs=1e-5)


def test_the_platform_stands_in_for_packages(tmp_path: Path) -> None:
    place = zone(tmp_path, "intel-rapl:1", "psys", 0)
    meter = Rapl(tmp_path)
    count(place, 2_000_000)
    assert meter.joules() == 2


def test_without_a_counter_there_is_the_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match="has no energy counter of a processor"):
        Rapl(tmp_path)
    monkeypatch.setattr(meters, "Rapl", lambda: Rapl(tmp_path))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert [type(part) for part in meters.meters()] == [Load, Memory]


class Nvml:
    """Two GPUs, as NVML gives them."""

    NVMLError = type("NVMLError", (Exception,), {})

    def __init__(self) -> None:
        self.energy = {0: 5_000, 1: 70_000}

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.energy)

    def nvmlDeviceGetHandleByIndex(self, at: int) -> int:  # noqa: N802
        return at

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:  # noqa: N802
        if self.energy[handle] < 0:
            raise self.NVMLError("not supported")
        return self.energy[handle]


def test_gpus_are_counted_in_millijoules(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    meter = Gpus()
    nvml.energy = {0: 6_000, 1: 72_500}
    assert meter.joules() == pytest.approx(3.5)
    assert meter.joules() == 0
    nvml.energy[1] = -1
    with pytest.raises(OSError, match="NVML: not supported"):
        Gpus()
    nvml.energy = {}
    with pytest.raises(OSError, match="no GPU"):
        Gpus()


def test_the_load_is_the_share_of_time_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def spent(user: float, idle: float, iowait: float = 0.0, guest: float = 0.0) -> object:
        values = {"user": user, "idle": idle, "iowait": iowait, "guest": guest}
        return type("Times", (tuple,), values)(values.values())

    readings = [spent(10, 10), spent(13, 11), spent(13, 11), spent(15, 11, 2, guest=1), spent(9, 9)]
    clock = iter([0.0, 2.0, 3.0, 4.0, 5.0])
    monkeypatch.setattr(psutil, "cpu_times", lambda: readings.pop(0))
    monkeypatch.setattr(meters, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(meters, "rated_watts", lambda *_: 100.0)
    meter = Load()
    assert meter.joules() == pytest.approx(2 * processor_watts(100, 0.75))
    assert meter.joules() == pytest.approx(processor_watts(100, 0))  # no time has passed
    assert meter.joules() == pytest.approx(processor_watts(100, 0.5))
    assert meter.joules() == pytest.approx(10)  # a clock that went back


@pytest.mark.parametrize(("load", "share"), [(0, 0.1), (0.5, 0.2125), (1, 1)])
def test_power_is_a_tenth_when_idle_and_rises_with_the_cube_of_the_load(load: float, share: float) -> None:
    assert processor_watts(80, load) == pytest.approx(80 * share)


@pytest.mark.parametrize(
    ("model", "watts"),
    [
        ("AMD EPYC 7763 64-Core Processor", 280),
        ("Intel(R) Core(TM) i7-8650U CPU @ 1.90GHz", 15),
        ("intel core i7-8650u", 15),
        ("AMD EPYC", 4 * 12),  # of which there are many
        ("", 4 * 12),
    ],
)
def test_rated_power_is_of_the_table_or_by_threads(model: str, watts: float) -> None:
    assert rated_watts(model, 12) == watts
    listed = watts != 4 * 12
    assert rated_watts(model, 12, 2) == (2 * watts if listed else watts)  # the threads are those of both


def test_sockets_are_those_that_lscpu_counts() -> None:
    assert _sockets(["CPU(s): 8", "Socket(s):            2"]) == 2
    assert _sockets(["Socket(s): -"]) == _sockets([]) == 1


def test_the_models_are_those_of_codecarbon() -> None:
    pytest.importorskip("codecarbon", reason="the energy extra is not installed")
    from codecarbon.core.cpu import TDP
    from codecarbon.external.hardware import CPU
    from codecarbon.external.ram import RAM
    from codecarbon.input import DataSource

    table = DataSource().get_cpu_power_data()
    tdp = TDP()
    for model in [*map(str, table["Name"][::499]), "AMD EPYC 7763 64-Core Processor", "Intel(R) Xeon(R) CPU @ 2.20GHz"]:
        assert rated_watts(model, 8) == (tdp._get_cpu_power_from_registry(model) or 4 * 8), model
    ram = RAM()
    for ram.is_arm_cpu in (False, True):
        for gib in (1, 3.8, 7.7, 31, 33, 62, 65, 125, 129, 250, 503, 1007, 2015, 6000):
            assert memory_watts(gib, arm=ram.is_arm_cpu) == pytest.approx(ram._calculate_ram_power(gib)), gib
    cpu = CPU("", "cpu_load", "any", 80)
    for load in (0, 31, 100):
        cpu._cpu_load_meter = SimpleNamespace(percent=lambda load=load: load)
        assert processor_watts(80, load / 100) == pytest.approx(cpu._get_power_from_cpu_load().W)
