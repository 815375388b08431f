"""Losses of recipes of several changes, foreseen from those of each alone."""

import numpy as np
import pytest

from greenformers.search.losses import LEAST, SHARE, Losses

NOTHING = [0.0, 0.0, 0.0]
ALONE = [[0.5, 0, 0], [1, 0, 0], [0, 0.25, 0], [0, 1, 0], [0, 0, 1]]
LOST = [0.01, 0.04, 0.005, 0.08, 0.0]


def test_losses_of_changes_alone_add_up():
    losses = Losses([NOTHING, *ALONE], [0.0, *LOST])
    roots, spread = losses.predict([NOTHING, *ALONE, [0.5, 1, 0], [1, 0.25, 1], [0.75, 0, 0]])
    expected = [0.0, *LOST, 0.09, 0.045]
    assert roots[:-1] ** 2 == pytest.approx(expected, abs=1e-9)
    assert 0.01 < roots[-1] ** 2 < 0.04, "between the settings that were tried"
    assert (spread > SHARE * roots).all()
    assert spread[-3] < 0.1 * roots[-3], "and it is sure of that"


def test_what_sums_are_off_by_is_learned():
    draw = np.random.default_rng(0)
    S = [[a, b, 0.0] for a in (0.5, 1.0) for b in (0.25, 1.0)]

    def lost(row):
        alone = {0.0: 0.0, 0.25: 0.005, 0.5: 0.01, 1.0: 0.04 if row[1] == 0 else 0.08}
        return (np.sqrt(alone[row[0]] + alone[row[1]]) + 0.1 * row[0] * row[1] + 1e-3 * draw.normal()) ** 2

    before = Losses([NOTHING, *ALONE], [0.0, *LOST])
    after = Losses([NOTHING, *ALONE, *S[:3]], [0.0, *LOST, *map(lost, S[:3])])
    missed = [abs(losses.predict([S[3]])[0][0] - np.sqrt(lost(S[3]))) for losses in (before, after)]
    assert missed[1] < 0.5 * missed[0]


def test_gains_are_no_losses_and_what_was_not_tried_alone_is_learned_from_what_was():
    losses = Losses([NOTHING, [1, 0, 0], [1, 1, 0], [1, 0.5, 0]], [0.0, -0.01, 0.04, 0.01])
    roots, spread = losses.predict([[1, 0, 0], [1, 1, 0], [0, 0, 1]])
    assert roots[0] == pytest.approx(0, abs=0.03)
    assert roots[1] == pytest.approx(0.2, abs=0.05)
    assert spread[2] > spread[1] > 0
    nothing_lost, _ = Losses([NOTHING, [1, 0, 0]], [0.0, 0.0]).predict([[1, 0, 0]])
    assert nothing_lost[0] == pytest.approx(0, abs=1e-6)
    assert LEAST > 0
