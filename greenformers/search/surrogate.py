"""What a recipe that was not tried will be: second-order terms of the strengths of its changes, learned from trials.

    y(s) = a + sum_i (b_i [s_i > 0] + c_i s_i + d_i s_i^2) + sum_{i < j} e_ij s_i s_j

by Bayesian linear regression (Bishop 2006, 3.3 and 3.5): weights have normal priors, of interactions a narrower one,
and the width of both and of the noise is that with the greatest evidence of a small grid. The prediction is a normal
distribution.
"""

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import numpy as np

WIDTHS, NOISES, INTERACTIONS = (0.3, 1.0, 3.0), (0.03, 0.1, 0.3), (0.3, 1.0)
"""Standard deviations that are tried: of the weights, of the noise, and of interactions as a share of that of weights;
all in units of the standard deviation of what is predicted."""


class Surrogate:
    """A prediction from the strengths of changes.

    Args:
        strengths: Strengths of each trial (trials, changes).
        values: What was seen in each (trials,).
        centre: What is expected where nothing is known; by default the mean of the values.
        least: The least unit of what is predicted, which is the standard deviation of the values if that is more.

    Attributes:
        noise: Standard deviation of what is seen of one recipe.
    """

    def __init__(
        self, strengths: Sequence[Sequence[float]], values: Sequence[float], *, centre: float | None = None,
        least: float = 0.0,
    ) -> None:  # fmt: skip
        y = np.asarray(values, dtype=np.float64)
        self._centre, self._scale = y.mean() if centre is None else centre, max(y.std(), least) or 1.0
        X = terms(strengths)
        y = (y - self._centre) / self._scale
        fits = [_fit(X, y, *spread, len(strengths[0])) for spread in product(WIDTHS, NOISES, INTERACTIONS)]
        _, self._mean, self._covariance, self._noise = max(fits, key=lambda fit: fit[0])
        self.noise: float = self._scale * self._noise

    def predict(self, strengths: Sequence[Sequence[float]]) -> tuple[Any, Any]:
        """Mean and standard deviation of each of some recipes, without that of noise."""
        X = terms(strengths)
        spread = np.sqrt(np.einsum("ij,jk,ik->i", X, self._covariance, X))
        return self._centre + self._scale * (X @ self._mean), self._scale * spread


def terms(strengths: Sequence[Sequence[float]]) -> Any:
    """The terms of each recipe: a constant, presences, strengths and their squares, and products of two."""
    s = np.asarray(strengths, dtype=np.float64)
    pairs = [s[:, i] * s[:, j] for i, j in combinations(range(s.shape[1]), 2)]
    columns = [np.ones((len(s), 1)), s > 0, s, s**2, *(pair[:, None] for pair in pairs)]
    return np.concatenate(columns, axis=1)


def _fit(X: Any, y: Any, width: float, noise: float, interaction: float, changes: int) -> tuple[float, Any, Any, float]:
    """Log evidence, and mean and covariance of the weights."""
    prior = np.full(X.shape[1], width**2)
    prior[0] = 10.0
    prior[1 + 3 * changes :] *= interaction**2
    precision = np.diag(1 / prior) + X.T @ X / noise**2
    covariance = np.linalg.inv(precision)
    mean = covariance @ X.T @ y / noise**2
    missed = ((y - X @ mean) ** 2).sum() / noise**2 + (mean**2 / prior).sum()
    _, log_det = np.linalg.slogdet(precision)
    evidence = -0.5 * (missed + log_det + np.log(prior).sum() + len(y) * np.log(2 * np.pi * noise**2))
    return float(evidence), mean, covariance, noise
