"""Least squares without negative coefficients, against those of scipy."""

import numpy as np
import pytest
from scipy.optimize import nnls

from greenformers.advise.least_squares import nonnegative


@pytest.mark.parametrize(("rows", "columns"), [(7, 3), (3, 7), (53, 13), (5, 1), (11, 11)])
def test_equals_that_of_scipy(rows: int, columns: int) -> None:
    draw = np.random.default_rng(rows)
    for _ in range(20):
        A, b = draw.normal(size=(rows, columns)), draw.normal(size=rows)
        found, (_, error) = nonnegative(A, b), nnls(A, b)
        assert found.min() >= 0
        assert np.linalg.norm(A @ found - b) == pytest.approx(error, abs=1e-9)


def test_of_amounts_of_work_it_is_the_one_solution() -> None:
    draw = np.random.default_rng(0)
    A = draw.random((97, 7)) * [1, 1e3, 1e-3, 1, 1, 1, 0]  # a kind of work that nothing had
    x = np.array([2.0, 0.0, 3.0, 0.0, 5.0, 1e-9, 0.0])
    np.testing.assert_allclose(nonnegative(A, A @ x), x, atol=1e-7)
    noisy = A @ x * draw.uniform(0.8, 1.2, 97)
    np.testing.assert_allclose(nonnegative(A, noisy), nnls(A, noisy)[0], rtol=1e-6, atol=1e-9)


def test_what_only_rises_is_nothing() -> None:
    assert nonnegative(np.ones((3, 2)), -np.ones(3)).tolist() == [0, 0]


def test_what_is_not_a_number_is_refused() -> None:
    with pytest.raises((ValueError, np.linalg.LinAlgError)):
        nonnegative(np.full((3, 2), np.nan), np.ones(3))
