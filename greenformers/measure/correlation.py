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

    It is nan where one of them is: that has no rank.

    Args:
        a: Numbers, (n,).
        b: Numbers, (n,).
    """
    if _lacks_a_rank(a) or _lacks_a_rank(b):
        return float("nan")
    return pearson(_ranks(a), _ranks(b))


def _lacks_a_rank(values: ArrayLike) -> bool:
    return bool(np.isnan(np.asarray(values, np.float64)).any())


def _ranks(values: ArrayLike) -> NDArray[np.float64]:
    _, place, count = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    ranks: NDArray[np.float64] = (last - (count - 1) / 2)[place]
    return ranks


class Resampled:
    """Spearman's correlation of pairs drawn with replacement, from one sort of all of them for any number of draws.

    A number that is drawn c times, and that k drawn ones are below, has the mean rank k + (c + 1) / 2.

    Args:
        a: Numbers, (n,).
        b: Numbers, (n,).
    """

    def __init__(self, a: ArrayLike, b: ArrayLike) -> None:
        self._none = _lacks_a_rank(a) or _lacks_a_rank(b)
        self._places = [np.unique(np.asarray(values), return_inverse=True)[1] for values in (a, b)]

    def spearman(self, drawn: NDArray[np.integer]) -> float:
        """The correlation of the drawn pairs, as `spearman` gives it; nan where a number of all the pairs is.

        Args:
            drawn: The number of each pair that is drawn (m,).
        """
        if self._none:
            return float("nan")
        times = np.bincount(drawn, minlength=len(self._places[0]))
        x, y = (np.sqrt(times) * self._ranks(place, times) for place in self._places)
        of_x, of_y = np.linalg.norm(x), np.linalg.norm(y)
        return float(np.clip(x @ y / (of_x * of_y), -1.0, 1.0)) if of_x and of_y else 0.0

    @staticmethod
    def _ranks(place: NDArray[np.intp], times: NDArray[np.intp]) -> NDArray[np.float64]:
        """The ranks among the drawn numbers, less their mean."""
        count = np.bincount(place, weights=times)
        ranks: NDArray[np.float64] = (np.cumsum(count) - (count - 1) / 2 - (times.sum() + 1) / 2)[place]
        return ranks
