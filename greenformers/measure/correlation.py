"""Correlations of two lists of numbers."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def pearson(a: ArrayLike, b: ArrayLike) -> float:
    """Pearson's correlation r = cov(a, b) / (std(a) std(b)), in -1..1; 0 where one of them is constant.

    Args:
        a: Numbers, (n,).
        b: Numbers, (n,).
    """
    x, y = (values - values.mean() for values in (np.asarray(a, np.float64), np.asarray(b, np.float64)))
    if not np.ptp(x) or not np.ptp(y):
        return 0.0
    # Brought to unit length first: products of small numbers would be rounded to 0.
    r = (x / np.linalg.norm(x)) @ (y / np.linalg.norm(y))
    return float(np.clip(r, -1.0, 1.0))


def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """Spearman's correlation: Pearson's of the ranks, where equal numbers share their mean rank. Spearman 1904.

    Args:
        a: Numbers, (n,).
        b: Numbers, (n,).
    """
    return pearson(_ranks(a), _ranks(b))


def _ranks(values: ArrayLike) -> NDArray[np.float64]:
    _, place, count = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    ranks: NDArray[np.float64] = (last - (count - 1) / 2)[place]
    return ranks
