"""The same energy by codecarbon and by ourselves, where both are there."""

import socket
import time
from types import SimpleNamespace

import pytest

from greenformers._extras import MissingExtraError
from greenformers.measure._codecarbon import cpu_readings
from greenformers.measure.energy import EnergyMeter
from greenformers.measure.energy_by_codecarbon import CodecarbonMeter, _source

pytest.importorskip("codecarbon", reason="the energy extra is not installed")
TOLERANCE = 0.05
"""Relative: the two do not read the load at the same moments."""


def busy(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@pytest.mark.slow
def test_both_give_the_same_energy_and_co2_on_the_same_load():
    with CodecarbonMeter(), EnergyMeter():  # what is looked up once
        pass
    with CodecarbonMeter("HKG") as theirs, EnergyMeter("HKG") as ours:
        busy(2.5)
    assert ours.energy_wh == pytest.approx(theirs.energy_wh, rel=TOLERANCE)
    assert ours.co2_g == pytest.approx(theirs.co2_g, rel=TOLERANCE)
    assert ours.source == theirs.source
    assert theirs.by.startswith("codecarbon ")
    assert 0 <= theirs.metered <= 1


def test_nothing_is_written_logged_or_sent_whatever_the_users_settings(tmp_path, monkeypatch, capfd):
    settings = {
        "output_methods": "csv,logger",
        "emissions_endpoint": "http://localhost:9",
        "electricitymaps_api_token": "token",
        "co2_signal_api_token": "token",
        "log_level": "debug",
        "allow_multiple_runs": "false",
        "cloud_provider": "gcp",
        "cloud_region": "us-east1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"CODECARBON_{name.upper()}", value)

    def connect(*_):
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    monkeypatch.chdir(tmp_path)
    with CodecarbonMeter(country="ISL") as meter:
        busy(0.01)
    assert meter.co2_g / meter.energy_wh < 0.1  # Iceland's, and not that of the cloud region
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "codecarbon", None)
    with pytest.raises(MissingExtraError, match="needs codecarbon: install greenformers with its extra 'energy'"):
        CodecarbonMeter()


RAM, GPU = type("RAM", (), {})(), type("GPU", (), {})()


def cpu(mode):
    return type("CPU", (), {"_mode": mode})()


@pytest.mark.parametrize(
    ("hardware", "energies", "expected"),
    [
        ([RAM, cpu("cpu_load")], (3, 0, 1), ("estimated", 0.0)),
        ([RAM, cpu("constant")], (3, 0, 1), ("estimated", 0.0)),
        ([RAM, cpu("intel_rapl")], (3, 0, 1), ("measured", 0.75)),
        ([RAM, cpu("intel_rapl"), GPU], (3, 4, 1), ("measured", 0.875)),
        ([RAM, cpu("cpu_load"), GPU], (3, 4, 1), ("estimated", 0.5)),
        ([RAM, cpu("intel_rapl")], (0, 0, 1), ("estimated", 0.0)),
        ([RAM], (0, 0, 1), ("estimated", 0.0)),
    ],
)
def test_only_a_read_meter_makes_a_figure_measured(hardware, energies, expected):
    cpu_energy, gpu_energy, ram_energy = energies
    data = SimpleNamespace(
        cpu_energy=cpu_energy, gpu_energy=gpu_energy, energy_consumed=cpu_energy + gpu_energy + ram_energy
    )
    assert _source(cpu_readings(SimpleNamespace(_hardware=hardware)), data) == expected
