"""How well recipes are foreseen is stated by those that were held out."""

import random
from pathlib import Path
from statistics import median

import pytest
from test_searching import SPACE, KnownLab

from greenformers.search.held_out import PARTS, errors_of
from greenformers.search.propose import Predictions
from greenformers.search.trials import Trial, Trials


def tried(folder: Path, count: int) -> Trials:
    """So many recipes as they are, and a few of them healed."""
    draw, trials = random.Random(0), Trials(folder / "trials.jsonl")
    rows = list(dict.fromkeys(SPACE.drawn(draw) for _ in range(2 * count)))[:count]
    for steps, genes in [*((0, row) for row in rows), *((100, row) for row in rows[:5])]:
        trials.add(Trial(genes, steps, *KnownLab.figures(genes, steps), smaller=1.0))
    return trials


def test_each_recipe_is_predicted_from_trials_of_others_alone(tmp_path: Path) -> None:
    trials = tried(tmp_path, PARTS)
    times, losses = [], []
    for trial in trials.done(0):
        others = Trials(tmp_path / "none.jsonl")
        others.seen = [other for other in trials.seen if other.genes != trial.genes]
        (predicted,) = Predictions(SPACE, others, 0).of([trial.genes])
        times.append(abs((1 / predicted.speed) / (1 / trial.speed) - 1))
        losses.append(abs(predicted.lost() - trial.lost))
    errors = errors_of(SPACE, trials)
    assert errors is not None
    assert errors == (PARTS, pytest.approx(median(times)), pytest.approx(median(losses)))
    assert errors.time > 0


def test_of_many_recipes_the_error_is_small_and_of_few_none_is_stated(tmp_path: Path) -> None:
    errors = errors_of(SPACE, tried(tmp_path / "many", 40))
    assert errors is not None
    assert errors.recipes == 40
    assert errors.time < 0.1
    assert errors.lost < 0.03
    assert errors_of(SPACE, tried(tmp_path / "few", PARTS - 1)) is None
