"""Predictions of recipes that were not tried, beside values that are known."""

from itertools import product

import numpy as np
from scipy.stats import multivariate_normal

from greenformers.search.surrogate import INTERACTIONS, NOISES, WIDTHS, Surrogate, terms


def target(s):
    return 0.5 * s[:, 0] + 1.5 * s[:, 1] ** 2 + s[:, 0] * s[:, 2] - 0.3 * (s[:, 2] > 0)


def drawn(count, seed):
    draw = np.random.default_rng(seed)
    return draw.random((count, 4)) * (draw.random((count, 4)) < 0.6)


def test_second_order_terms_with_interactions_are_learned():
    s, new = drawn(60, 0), drawn(200, 1)
    noise = np.random.default_rng(2).normal(0, 0.02, len(s))
    mean, spread = Surrogate(s.tolist(), (target(s) + noise).tolist()).predict(new.tolist())
    error = mean - target(new)
    assert np.sqrt((error**2).mean()) < 0.1 * target(new).std()
    assert (np.abs(error) < 3 * (spread + 0.02)).mean() > 0.9, "the stated spread is what it misses by"


def test_what_is_far_from_all_that_was_seen_is_less_sure():
    s = drawn(30, 0)
    s[:, 3] = 0
    surrogate = Surrogate(s.tolist(), target(s).tolist())
    near, far = [0.5, 0.5, 0.0, 0.0], [0.5, 0.5, 0.0, 1.0]
    _, spread = surrogate.predict([near, far])
    assert spread[1] > 3 * spread[0]


def test_it_is_ridge_regression_with_the_prior_of_the_greatest_evidence():
    s = drawn(25, 3)
    y = target(s)
    surrogate = Surrogate(s.tolist(), y.tolist())
    X, z = terms(s), (y - y.mean()) / y.std()
    changes = s.shape[1]

    def prior(width, interaction):
        return np.array(
            [10.0, *[width**2] * 3 * changes, *[(width * interaction) ** 2] * (X.shape[1] - 1 - 3 * changes)]
        )

    def evidence(width, noise, interaction):
        spread = X @ np.diag(prior(width, interaction)) @ X.T + noise**2 * np.eye(len(z))
        return multivariate_normal(np.zeros(len(z)), spread).logpdf(z)

    width, noise, interaction = max(product(WIDTHS, NOISES, INTERACTIONS), key=lambda row: evidence(*row))
    assert surrogate._noise == noise
    precision = np.diag(1 / prior(width, interaction)) + X.T @ X / noise**2
    assert np.allclose(surrogate._mean, np.linalg.solve(precision, X.T @ z / noise**2), rtol=1e-6, atol=1e-8)
    assert np.allclose(surrogate._covariance @ precision, np.eye(X.shape[1]), atol=1e-6)
