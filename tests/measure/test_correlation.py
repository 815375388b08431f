"""Correlations against those of scipy."""

import math

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from greenformers.measure.correlation import Resampled, pearson, spearman


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("scale", [1e-100, 1.0, 1e6])
def test_correlations_are_those_of_scipy(dtype: type, scale: float) -> None:
    draw = np.random.default_rng(0)
    for count in (2, 3, 7, 101):
        a = (7 * draw.random(count)).astype(dtype)  # as integers, with ties
        b = scale * (a + 5 * draw.random(count))
        assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic if np.ptp(a) else 0.0, abs=1e-12)
        assert pearson(a, b) == pytest.approx(pearsonr(a, b / scale).statistic if np.ptp(a) else 0.0, abs=1e-6)


def test_what_is_constant_correlates_with_nothing() -> None:
    assert pearson([1.0, 1.0], [1.0, 2.0]) == spearman([1, 2], [3, 3]) == 0.0


def test_orders_are_plus_and_minus_one() -> None:
    assert spearman([1, 2, 9], [0, 1, 1e9]) == pytest.approx(1, abs=1e-12)
    assert pearson([1, 2, 3], [3, 2, 1]) == pytest.approx(-1, abs=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_draws_correlate_as_the_drawn_pairs_do(dtype: type) -> None:
    draw = np.random.default_rng(1)
    for count in (2, 7, 101):
        a = (7 * draw.random(count)).astype(dtype)
        b = a + 5 * draw.random(count)
        both = Resampled(a, b)
        for size in (1, count, 2 * count):
            drawn = draw.integers(0, count, size)
            assert both.spearman(drawn) == pytest.approx(spearman(a[drawn], b[drawn]), abs=1e-12)
    assert Resampled([1, 2], [3, 4]).spearman(np.array([1, 1, 1])) == 0.0


def test_what_is_no_number_has_no_rank() -> None:
    values = [math.nan, 1.0, 2.0], [3.0, 1.0, 2.0]
    assert math.isnan(spearman(*values))
    assert math.isnan(Resampled(*reversed(values)).spearman(np.arange(3)))
