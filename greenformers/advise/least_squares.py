"""Least squares without negative coefficients. Lawson and Hanson 1974, Solving Least Squares Problems, chapter 23."""

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def nonnegative(A: NDArray[np.float64], b: Vector) -> Vector:
    """The x >= 0 that minimises |A x - b|, (n,).

    Variables become free one by one, first the one along which the error falls fastest, until it falls along none.

    Args:
        A: Matrix of m rows and n columns, (m, n).
        b: Right side, (m,).

    Raises:
        ValueError: Raised where it does not end within 3 n steps, as where columns are not numbers.
    """
    n = A.shape[1]
    x, free, refused = np.zeros(n), np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
    least = 10 * max(A.shape) * np.finfo(np.float64).eps * np.abs(A).sum(0).max(initial=0.0)
    for _ in range(3 * n + 1):
        falls = np.where(free | refused, -np.inf, A.T @ (b - A @ x))
        if falls.max(initial=-np.inf) <= least:
            return x
        entering = falls.argmax()
        free[entering] = True
        x = _inner(A, b, x, free)
        # A variable that was free by rounding alone is not freed again before another one was.
        refused = refused & (not free[entering])
        refused[entering] = not free[entering]
    raise ValueError(f"least squares of {n} coefficients did not end within {3 * n} steps")


def _inner(A: NDArray[np.float64], b: Vector, x: Vector, free: NDArray[np.bool_]) -> Vector:
    """The solution in the free variables; those that would become negative are set to 0 and taken out of `free`."""
    while True:
        target = np.zeros_like(x)
        target[free] = np.linalg.lstsq(A[:, free], b, rcond=None)[0]
        negative = free & (target <= 0)
        if not negative.any():
            return target
        step = (x[negative] / np.maximum(x[negative] - target[negative], np.finfo(np.float64).tiny)).min()
        x = x + step * (target - x)
        free &= x > 1e-12 * np.abs(x).max(initial=0.0)
        x[~free] = 0.0
