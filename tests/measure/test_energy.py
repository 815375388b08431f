import math
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from greenformers.measure._codecarbon import cpu_readings
from greenformers.measure.energy import EnergyMeter, _source


def busy(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_energy_is_plausible_and_grows_with_the_work():
    with EnergyMeter() as warm_up:
        pass
    assert warm_up.energy_wh > 0
    with EnergyMeter() as short:
        busy(0.02)
    with EnergyMeter() as long:
        busy(0.4)
    watts = long.energy_wh * 3600 / 0.4
    assert 1 < watts < 10_000
    assert 0 < short.energy_wh < long.energy_wh


def test_co2_is_the_energy_at_the_countrys_carbon_intensity():
    intensity = {}
    for country in ("HKG", "USA", "ISL"):
        with EnergyMeter(country=country) as meter:
            busy(0.01)
        intensity[country] = meter.co2_g / meter.energy_wh * 1000  # g / kWh
    assert intensity["ISL"] < 100 < intensity["USA"] < 500 < intensity["HKG"] < 1000


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
    with EnergyMeter(country="ISL") as meter:
        busy(0.01)
    assert meter.co2_g / meter.energy_wh < 0.1  # Iceland's, and not that of the cloud region
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
    assert started
    for thread in started:
        thread.join(timeout=1)
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


def test_the_source_here_fits_the_metered_share():
    with EnergyMeter() as meter:
        busy(0.01)
    assert meter.source in ("measured", "estimated")
    assert 0 <= meter.metered <= 1
    assert (meter.source == "estimated") or meter.metered > 0


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


@pytest.mark.parametrize("country", ["XXX", "usa", "US", ""])
def test_an_unknown_country_is_named(country):
    with pytest.raises(ValueError, match=f"3-letter ISO code that codecarbon has data for, got '{country}'"):
        EnergyMeter(country=country)
