"""Predictions of recipes that were not tried, beside values that are known."""

import numpy as np

from greenformers.search.surrogate import Surrogate, terms


def known(s):
    return 0.5 * s[:, 0] + 1.5 * s[:, 1] ** 2 + s[:, 0] * s[:, 2] - 0.3 * (s[:, 2] > 0)


def drawn(count, seed):
    draw = np.random.default_rng(seed)
    return draw.random((count, 4)) * (draw.random((count, 4)) < 0.6)


def test_second_order_terms_with_interactions_are_learned():
    s, new = drawn(60, 0), drawn(200, 1)
    noise = np.random.default_rng(2).normal(0, 0.02, len(s))
    mean, spread = Surrogate(s.tolist(), (known(s) + noise).tolist()).predict(new.tolist())
    error = mean - known(new)
    assert np.sqrt((error**2).mean()) < 0.1 * known(new).std()
    assert (np.abs(error) < 3 * (spread + 0.02)).mean() > 0.9, "the stated spread is what it misses by"


def test_what_is_far_from_all_that_was_seen_is_less_sure():
    s = drawn(30, 0)
    s[:, 3] = 0
    surrogate = Surrogate(s.tolist(), known(s).tolist())
    near, far = [0.5, 0.5, 0.0, 0.0], [0.5, 0.5, 0.0, 1.0]
    _, spread = surrogate.predict([near, far])
    assert spread[1] > 3 * spread[0]


def test_the_mean_is_that_of_ridge_regression_with_the_prior():
    s, y = drawn(25, 3), None
    y = known(s)
    surrogate = Surrogate(s.tolist(), y.tolist())
    X, z = terms(s), (y - y.mean()) / y.std()
    residual = X.T @ (z - X @ surrogate._mean) / surrogate._noise**2
    # At the mode of the posterior the gradient of the prior is that of the likelihood.
    precision = np.linalg.inv(surrogate._covariance) - X.T @ X / surrogate._noise**2
    assert np.allclose(residual, precision @ surrogate._mean, rtol=1e-4, atol=1e-4)
