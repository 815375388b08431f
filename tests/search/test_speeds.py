"""Speeds of recipes are learned: products gain by some changes, and the rest by few."""

import numpy as np

from greenformers.search.speeds import Speeds

OF_PRODUCTS = np.log([0.5, 0.45, 0.7])
"""Of fewer layers, low rank at its strongest, and int8."""
OF_THE_REST = np.log([0.5, 1.0, 1.0])
SHARE = 0.8


def times(s: np.ndarray) -> np.ndarray:
    return SHARE * np.exp(s @ OF_PRODUCTS) + (1 - SHARE) * np.exp(s @ OF_THE_REST)


def drawn(count: int, seed: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    s = draw.choice([0.0, 0.25, 0.5, 0.75, 1.0], (count, 3))
    s[:, 2] = s[:, 2] > 0.5
    return s


def test_recipes_that_were_not_tried() -> None:
    tried, new = np.concatenate([np.zeros((1, 3)), np.eye(3), drawn(20, 0)]), drawn(60, 1)
    noise = 0.03 * np.random.default_rng(2).standard_normal(len(tried))
    speeds = Speeds(tried.tolist(), (-np.log(times(tried)) + noise).tolist())
    missed = np.abs(np.exp(speeds.predict(new.tolist())) * times(new) - 1)
    assert np.median(missed) < 0.04
    assert missed.max() < 0.15


def test_what_is_left_bounds_what_products_gain() -> None:
    tried = np.concatenate([np.zeros((1, 3)), np.eye(3), drawn(20, 0)])
    speeds = Speeds(tried.tolist(), (-np.log(times(tried))).tolist())
    nothing, low_rank, int8, both = np.exp(
        speeds.predict([[0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 1]])
    )  # fmt: skip
    assert abs(nothing - 1) < 0.05
    assert max(low_rank, int8) < both < 0.99 * low_rank * int8


def test_a_single_trial_is_enough() -> None:
    assert np.isfinite(Speeds([[0.0, 0.0], [1.0, 0.0]], [0.0, 0.5]).predict([[1.0, 1.0]])).all()
