"""What healing brings back of each recipe, learned from trials that follow its formula."""

from math import exp, log

import pytest

from greenformers.changes import Int8, Layers, Prune
from greenformers.search.healing import AT, BETWEEN, FALL, HURDLES, KEPT, LATER, NEAR, SLOPE, TRUSTED, Healing
from greenformers.search.space import Space
from greenformers.search.trials import Trial, Trials

SPACE = Space((tuple(Layers(keep) for keep in (5, 4, 3)), tuple(Prune(keep) for keep in (0.8, 0.6, 0.4)), (Int8(),)),
              lambda _: True)  # fmt: skip


def trials(tmp_path, recipes, *, left, fall):
    seen = Trials(tmp_path / "trials.jsonl")
    for genes in recipes:
        lost = 0.02 * sum(genes)
        seen.add(Trial(genes, 0, 2.0, lost, 1.0))
        for steps in HURDLES:
            share = left(genes) * exp(fall * log(steps / AT, 2))
            seen.add(Trial(genes, steps, 2.0, lost * share, 1.0))
    return seen


def test_before_any_was_seen_it_is_what_is_known_of_an_encoder(tmp_path):
    healing = Healing(SPACE, Trials(tmp_path / "trials.jsonl"))
    fewest, few, many = (healing.left([(1, 1, 0)], steps)[0] for steps in (AT // 2, AT, 4 * AT))
    assert exp(few) == pytest.approx(KEPT)
    assert fewest == pytest.approx(few - FALL)
    assert many == pytest.approx(few + 2 * LATER * FALL)
    assert healing.change(AT // 2, 4 * AT) == pytest.approx(many - fewest)


def test_one_that_was_seen_moves_it(tmp_path):
    seen = trials(tmp_path, [(0, 2, 0)], left=lambda _: 0.9, fall=-0.1)
    healing = Healing(SPACE, seen)
    lost = 0.04 * 0.9 * exp(0.05)
    expected = FALL + SLOPE * log(lost / NEAR, 2)
    usual = (-0.1 - expected) / (TRUSTED + 1)
    assert healing.fall() == pytest.approx(FALL + usual, abs=0.01)
    own = healing.fall((0, 2, 0), lost)
    assert own == pytest.approx((expected + usual - 0.1) / 2, abs=0.01), "half of it is of the recipe"
    assert KEPT < exp(healing.left([(1, 0, 0)], AT)[0]) < 0.9


def test_what_lost_much_comes_back_slowly(tmp_path):
    healing = Healing(SPACE, Trials(tmp_path / "trials.jsonl"))
    falls = [healing.fall(lost=lost) for lost in (0.0, 0.005, NEAR, 2 * NEAR, 4 * NEAR, 1.0)]
    assert falls == sorted(falls)
    assert (falls[0], falls[2], falls[-1]) == (BETWEEN[1] * FALL, FALL, BETWEEN[0] * FALL)
    assert falls[3] == pytest.approx(FALL + SLOPE, abs=0.005)
    little, much = healing.left([(1, 0, 0), (2, 0, 0)], 8 * AT, [0.01, 0.2])
    assert little < much
    assert healing.change(AT, 8 * AT, lost=0.01) < healing.change(AT, 8 * AT, lost=0.1) < 0


def test_what_comes_back_sooner_is_learned_by_recipe(tmp_path):
    recipes = [(1, 0, 0), (2, 0, 1), (3, 0, 0), (0, 1, 0), (0, 2, 1), (0, 3, 0)]
    seen = trials(tmp_path, recipes, left=lambda genes: 0.2 if genes[0] else 0.9, fall=-0.3)
    layers, pruned = map(exp, Healing(SPACE, seen).left([(2, 0, 0), (0, 2, 0)], AT))
    assert layers < 0.3
    assert pruned > 0.6


def test_what_was_refused_or_gains_teaches_nothing_wrong(tmp_path):
    seen = Trials(tmp_path / "trials.jsonl")
    seen.add(Trial((1, 0, 0), 0, refused="no memory"))
    seen.add(Trial((1, 0, 0), 100, 2.0, 0.01, 1.0))
    seen.add(Trial((0, 0, 1), 0, 2.0, -0.001, 1.0))
    seen.add(Trial((0, 0, 1), 100, 2.0, -0.002, 1.0))
    (left,) = Healing(SPACE, seen).left([(1, 0, 0)], AT)
    assert KEPT <= exp(left) <= 1.0


def test_how_steep_the_loss_falls_in_long_healing_is_learned(tmp_path):
    seen = trials(tmp_path, [(2, 0, 0)], left=lambda _: 0.5, fall=FALL)
    before = Healing(SPACE, seen).change(AT, 8 * AT)
    assert before == pytest.approx(3 * LATER * FALL, rel=0.03)
    seen.add(Trial((2, 0, 0), 4 * AT, 2.0, seen.of((2, 0, 0), AT).lost * exp(2 * 0.5 * FALL), 1.0))
    after = Healing(SPACE, seen).change(AT, 8 * AT)
    assert after == pytest.approx(3 * (TRUSTED * LATER + 0.5) / (TRUSTED + 1) * FALL, rel=0.03)
