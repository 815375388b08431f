import importlib.util
import math
import socket
import sys
import threading
import time

import pytest

from greenformers.measure import energy
from greenformers.measure.carbon import grid_intensity, grids
from greenformers.measure.energy import EnergyMeter, _source
from greenformers.measure.meters import Gpus, Load, Memory, Rapl


def busy(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_energy_is_plausible_and_grows_with_the_work():
    with EnergyMeter() as nothing:
        pass
    assert nothing.energy_wh > 0
    with EnergyMeter() as short:
        busy(0.02)
    with EnergyMeter() as long:
        busy(0.2)
    watts = long.energy_wh * 3600 / 0.2
    assert 1 < watts < 10_000
    assert 0 < short.energy_wh < long.energy_wh


def test_co2_is_the_energy_at_the_countrys_carbon_intensity():
    intensity = {}
    for country in ("HKG", "USA", "ISL"):
        with EnergyMeter(country=country) as meter:
            busy(0.01)
        intensity[country] = meter.co2_g / meter.energy_wh * 1000  # g / kWh
        assert intensity[country] == pytest.approx(grid_intensity(country))
    assert intensity["ISL"] < 100 < intensity["USA"] < 500 < intensity["HKG"] < 1000


def test_nothing_is_written_logged_sent_or_asked_of_codecarbon(tmp_path, monkeypatch, capfd):
    def connect(*_):
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    monkeypatch.setitem(sys.modules, "codecarbon", None)
    monkeypatch.chdir(tmp_path)
    with EnergyMeter(country="ISL") as meter:
        busy(0.01)
    assert meter.energy_wh > 0
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")


def test_no_thread_outlives_the_block_even_when_the_work_fails():
    before = set(threading.enumerate())
    meter, started = EnergyMeter(), set()

    def work():
        with meter:
            started.update(set(threading.enumerate()) - before)
            raise KeyError("planted")

    with pytest.raises(KeyError, match="planted"):
        work()
    assert len(started) == 1
    assert not any(thread.is_alive() for thread in started)
    assert meter.energy_wh > 0


def test_figures_are_nan_until_the_block_ends_and_a_meter_measures_again():
    meter = EnergyMeter()
    assert math.isnan(meter.energy_wh)
    assert math.isnan(meter.co2_g)
    with meter:
        busy(0.2)
    first = meter.energy_wh
    with meter:
        busy(0.01)
    assert 0 < meter.energy_wh < first


class Steady:
    """A part that takes a joule between any two readings."""

    def __init__(self, by, measured):
        self.by, self.measured = by, measured

    def joules(self):
        return 1.0


def test_every_reading_of_every_part_counts(monkeypatch):
    monkeypatch.setattr(energy, "meters", lambda: [Steady("a", True), Steady("b", False), Steady("c", True)])
    monkeypatch.setattr(energy, "INTERVAL", 0.01)
    began = time.perf_counter()
    with EnergyMeter() as meter:
        time.sleep(0.2)
    took = time.perf_counter() - began
    readings = meter.energy_wh * 3600 / 3
    assert readings == pytest.approx(round(readings))
    assert 2 < round(readings) <= took / 0.01 + 2
    assert meter.metered == pytest.approx(2 / 3)
    assert meter.by == "a, b, c"


def part(kind):
    return object.__new__(kind)


@pytest.mark.parametrize(
    ("parts", "gpus", "source", "by"),
    [
        ([Load, Memory], False, "estimated", "load and rated power, size of memory"),
        ([Load, Memory], True, "estimated", "load and rated power, size of memory; GPUs left out"),
        ([Rapl, Memory], False, "measured", "RAPL, size of memory"),
        ([Rapl, Memory], True, "estimated", "RAPL, size of memory; GPUs left out"),
        ([Rapl, Gpus, Memory], True, "measured", "RAPL, NVML, size of memory"),
        ([Load, Gpus, Memory], True, "estimated", "load and rated power, NVML, size of memory"),
    ],
)
def test_only_a_read_meter_makes_a_figure_measured(parts, gpus, source, by):
    assert _source([part(kind) for kind in parts], gpus=gpus) == (source, by)


@pytest.mark.parametrize(
    ("country", "hint"),
    [("XXX", ""), ("usa", "; did you mean USA"), ("US", "; did you mean"), ("France", "; did you mean FRA?"), ("", "")],
)
def test_an_unknown_country_is_named(country, hint):
    with pytest.raises(ValueError, match="3-letter ISO code that there is a figure for") as refusal:
        EnergyMeter(country=country)
    assert f"got {country!r}{hint}" in str(refusal.value)


@pytest.mark.skipif(importlib.util.find_spec("codecarbon") is None, reason="the energy extra is not installed")
def test_intensities_are_those_of_codecarbon():
    from codecarbon.input import DataSource

    theirs = DataSource().get_global_energy_mix_data()
    mixes = {code: mix for code, mix in theirs.items() if mix["carbon_intensity"]}  # 0 where it is not known
    assert {code: tuple(grid) for code, grid in grids().items()} == {
        code: (mix["country_name"], mix["carbon_intensity"], mix["year"]) for code, mix in mixes.items()
    }
