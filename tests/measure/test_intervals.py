"""Intervals against scipy's and against their own equations."""

import pytest
from scipy import stats

from greenformers.measure.intervals import mean_interval, student, wilson


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 30])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_student_is_the_quantile_of_the_distribution(freedom: int, confidence: float) -> None:
    assert student(freedom, confidence) == pytest.approx(stats.t.ppf((1 + confidence) / 2, freedom), rel=1e-9)


@pytest.mark.parametrize(("right", "count"), [(0, 11), (3, 11), (11, 11), (374, 1000)])
def test_wilson_is_that_of_scipy(right: int, count: int) -> None:
    expected = stats.binomtest(right, count).proportion_ci(0.9, "wilson")
    assert wilson(right, count, 0.9) == pytest.approx((100 * expected.low, 100 * expected.high), abs=1e-9)


def test_the_mean_lies_in_the_middle() -> None:
    values = [31.0, 35.0, 37.5]
    expected = stats.t.interval(0.95, 2, sum(values) / 3, stats.sem(values))
    assert mean_interval(values) == pytest.approx(expected)


@pytest.mark.parametrize(
    "call", [lambda: wilson(3, 2), lambda: wilson(0, 0), lambda: mean_interval([1.0]), lambda: student(0),
             lambda: student(2, 1.0), lambda: wilson(1, 2, 0.0)],
)  # fmt: skip
def test_what_is_out_of_range_is_refused(call) -> None:
    with pytest.raises(ValueError, match="must be"):
        call()
