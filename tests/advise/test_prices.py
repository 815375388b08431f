"""Prices of work on a machine: fitted back from made-up times, and kept in a cache."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from greenformers.advise import calibration
from greenformers.advise.calibration import Prices, amounts, calibrate, fit
from greenformers.measure.grid import Cell, Network, Stack, ranked, variants
from greenformers.measure.trace import Work, trace

TRUE = np.array([0.02, 0.05, 0.0, 0.1, 0.01])
NETWORK = Network(hidden=16, heads=2, feed_forward=32, layers=3)
CELLS = [Cell("transformer", None, 24), Cell("lrt", 4, 24), Cell("linformer", 4, 24), Cell("lrt+linformer", 4, 24)]


def made(noise: float, outliers: int, rows: int = 96) -> list[tuple[np.ndarray, float]]:
    draw = np.random.default_rng(0)
    X = 10 ** draw.uniform(-2, 1, (rows, len(TRUE)))
    y = X @ TRUE * np.exp(noise * draw.standard_normal(rows))
    y[:outliers] *= draw.uniform(3, 10, outliers)
    return list(zip(X, y, strict=True))


def test_prices_are_found_again_exactly() -> None:
    found = fit(made(0.0, 0))
    assert found.seconds == pytest.approx(TRUE, abs=1e-9)
    assert (found.error, found.count) == (pytest.approx(0, abs=1e-9), 96)
    assert found.time([1, 1, 1, 1, 1]) == pytest.approx(TRUE.sum())


def test_prices_are_found_again_under_noise_and_outliers() -> None:
    found = fit(made(0.03, 8))
    assert min(found.seconds) >= 0
    assert found.seconds == pytest.approx(TRUE, rel=0.1, abs=0.004)
    assert 0.01 < found.error < 0.05  # the noise, not the outliers
    fair = made(0.0, 0)
    assert np.median([abs(found.time(row) / seconds - 1) for row, seconds in fair]) < 0.03


def test_a_feature_that_never_occurs_costs_nothing() -> None:
    rows = [(np.append(row, 0.0), seconds) for row, seconds in made(0.0, 0)]
    assert fit(rows).seconds == pytest.approx([*TRUE, 0.0], abs=1e-9)


def test_too_few_rows() -> None:
    with pytest.raises(ValueError, match="prices need at least 4 measured calls, got 3"):
        fit(made(0.0, 0)[:3])


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("cell", CELLS[::3], ids=lambda cell: cell.variant)
def test_amounts_are_linear_in_layers_and_those_of_the_whole_network(cell: Cell, mode: str) -> None:
    one, two, three, seven = (amounts(replace(NETWORK, layers=n), cell, 2, mode) for n in (1, 2, 3, 7))
    assert [found[-1] for found, _ in (one, two, three, seven)] == [1, 2, 3, 7]
    assert np.array(seven[0]) - three[0] == pytest.approx(4 * (np.array(two[0]) - one[0]))
    whole = trace(lambda: Stack(NETWORK, cell), (2, 24, 16), training=mode == "training")
    assert three[0] == pytest.approx([*whole.features(), 3])
    assert three[1].peak == whole.peak
    assert (seven[1].peak > whole.peak) == (mode == "training")
    assert len(three[0]) == len(Work.FEATURES) + 1


def test_drawn_networks_can_be_built() -> None:
    draw, causal = calibration.Draw(1), set()
    for _ in range(20):
        network, length, rank, batch = draw.network()
        assert rank <= length // 2
        assert batch >= 1
        causal.add(network.causal)
        names = draw.variants(1, network.causal)
        with torch.device("meta"):
            for name in names:
                Stack(network, Cell(name, rank if ranked(name) else None, length))
    assert causal == {False, True}


def test_every_variant_comes_once_before_any_comes_again() -> None:
    draw, every = calibration.Draw(0), variants()
    taken = [draw.variants(5, causal=False) for _ in range(len(every) // 5)]
    assert all(names[0] == "transformer" for names in taken)
    once = [name for names in taken for name in names[1:]]
    assert len(set(once)) == len(once) == len(every) // 5 * 5
    causal = draw.variants(9, causal=True)
    assert len(set(causal)) == 10
    assert set(causal[1:]) <= set(variants(causal=True))
    assert calibration.Draw(0).variants(5, causal=False) == taken[0] != calibration.Draw(1).variants(5, causal=False)


def test_measured_has_a_time_and_amounts_of_each_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "REPEATS", 1)
    network = replace(NETWORK, layers=1)
    for mode in ("inference", "training"):
        found = calibration.measured(network, 24, 4, 2, mode, ["transformer", "lrt"])
        assert list(found) == ["transformer", "lrt"]
        for cell in CELLS[:2]:
            row, seconds = found[cell.variant]
            assert row == amounts(network, cell, 2, mode)[0]
            assert seconds > 0


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Measuring costs nothing; the modes for which it was called."""
    calls: list[str] = []
    rows = iter(made(0.0, 0) * 100)

    def measured(*words: object) -> dict[str, object]:
        calls.append(str(words[4]))
        return {name: next(rows) for name in words[5]}  # type: ignore[attr-defined]

    monkeypatch.setattr(calibration, "measured", measured)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return calls


def test_calibration_is_written_once_and_then_read(cheap: list[str], tmp_path: Path) -> None:
    shares = []
    found = calibrate(progress=lambda _, share: shares.append(share))
    assert cheap == ["inference", "training"] * calibration.SETTINGS
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert set(found) == {"inference", "training"}
    assert all(isinstance(prices, Prices) and prices.count == 4 * calibration.SETTINGS for prices in found.values())
    (file,) = (tmp_path / "greenformers").iterdir()  # and no part of one
    before = file.read_bytes()
    assert calibrate() == found
    assert len(cheap) == 2 * calibration.SETTINGS
    assert file.read_bytes() == before


def test_other_threads_and_another_version_are_other_files(
    cheap: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calibrate()
    for name, value in ((torch, "get_num_threads"), (calibration, "version")):
        with monkeypatch.context() as patch:
            patch.setattr(name, value, lambda *_: 99)
            calibrate()
    assert len(list((tmp_path / "greenformers").iterdir())) == 3
    assert len(cheap) == 3 * 2 * calibration.SETTINGS
    calibrate()
    assert len(cheap) == 3 * 2 * calibration.SETTINGS


def test_without_xdg_the_cache_is_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert calibration._place("cpu").parent == tmp_path / ".cache/greenformers"
