"""Which recipes to try next: evolution on what is predicted. After Real 2019, arXiv:1802.01548 (tournaments).

Under a bound of loss the fastest is looked for of what may well keep to it: the logarithm of the speed-up by the chance
that the bound is kept, the improvement under a constraint of Gardner 2014 (Bayesian Optimization with Inequality
Constraints, 3.2).
"""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import exp, hypot, log, sqrt
from statistics import NormalDist

from greenformers.search.bound import EPSILON, STRICT, Bound
from greenformers.search.healing import UNSURE, Healing
from greenformers.search.losses import Losses
from greenformers.search.space import Genes, Space
from greenformers.search.speeds import Speeds
from greenformers.search.trials import Trials, front

POPULATION, GENERATIONS, CHILDREN = 40, 12, 60
HOPE, HEALED_HOPE = (0.0, 1.0, 2.0), (0.0, 0.5, 1.0)
"""Under a bound of speed, standard deviations by which a loss may be less than predicted: hoping much tries what is not
known well. Less of it where recipes are healed, which takes minutes."""

RANGE, NEAR = (6.0, 1.5), (0.9, 1.15)
"""Bounds that are aimed at, near the one given: how many times the loss at most, without healing, which may bring much
back, and with it; and shares of the speed-up."""


@dataclass(frozen=True)
class Prediction:
    """What a recipe will be.

    Attributes:
        speed: How many times as fast as the model as it is.
        root: Square root of the share of the quality that is lost, whose error is the same for small losses and large
            ones.
        spread: Standard deviation of the root.
    """

    speed: float
    root: float
    spread: float

    def lost(self, hope: float = 0.0) -> float:
        """Share of the quality that is lost, `hope` standard deviations less than the mean."""
        return max(0.0, self.root - hope * self.spread) ** 2

    def merit(self, bound: Bound, hope: float, strict: float) -> float:
        """How good the recipe is to be tried under a bound."""
        if bound.lose is None:
            return bound.merit(self.speed, self.lost(hope), strict)
        chance = NormalDist().cdf((sqrt(bound.lose + EPSILON) - self.root) / self.spread)
        return log(self.speed) * (chance if self.speed > 1 else 1.0)


class Predictions:
    """Speed and loss of recipes, learned from trials: the loss before healing, and by what factor healing lowers it.

    Args:
        space: The space of the recipes.
        trials: Trials, some without healing among them.
        steps: Steps of healing that the loss is predicted after.
        without: Recipes of which nothing is learned but what healing does to them.
    """

    def __init__(self, space: Space, trials: Trials, steps: int, without: Collection[Genes] = ()) -> None:
        self.space = space
        fresh = [trial for trial in trials.done(0) if trial.genes not in without]
        # The model as it is, which loses nothing, is known without a trial.
        strengths = [space.strengths(space.nothing), *(space.strengths(trial.genes) for trial in fresh)]
        every = [trial for trial in trials.done() if trial.genes not in without]  # healing changes no speed
        tried = [space.reductions(space.nothing), *(space.reductions(trial.genes) for trial in every)]
        self._speed = Speeds(tried, [0.0, *(log(trial.speed) for trial in every)])
        self._losses = Losses(strengths, [0.0, *(trial.lost for trial in fresh)])
        self._steps, self._healing = steps, Healing(space, trials)

    def of(self, rows: Sequence[Genes]) -> list[Prediction]:
        """What recipes will be."""
        strengths = [self.space.strengths(genes) for genes in rows]
        speed = self._speed.predict([self.space.reductions(genes) for genes in rows])
        root, spread = self._losses.predict(strengths)
        lost = [x**2 for x in root.tolist()]
        left = self._healing.left(rows, self._steps, lost) if self._steps else [0.0] * len(rows)
        figures = zip(speed.tolist(), root.tolist(), spread.tolist(), (exp(x / 2) for x in left), strict=True)
        unsure = UNSURE / 2 if self._steps else 0.0  # of the root, whose logarithm is half of that of the loss
        return [Prediction(exp(a), share * b, share * max(1e-3, hypot(c, unsure * b))) for a, b, c, share in figures]


def propose(
    space: Space, trials: Trials, bound: Bound, draw: random.Random, count: int, *, steps: int = 0
) -> list[Genes]:
    """Recipes to try next with so many steps of healing, that were not tried; fewer than `count` where none is left.

    Each is the best for a bound of its own, near the one given, by what is predicted.

    Args:
        space: The space of the recipes.
        trials: Trials, one without healing at least.
        bound: What the best recipe must keep to.
        draw: Source of draws.
        count: Number of recipes.
        steps: Steps of healing.
    """
    predictions = Predictions(space, trials, steps)
    tried = {trial.genes for trial in trials.seen if trial.steps == steps}
    tried |= {trial.genes for trial in trials.seen if trial.refused is not None}
    chosen: list[Genes] = []
    for number in range(count):
        hopes = HEALED_HOPE if steps else HOPE
        hope, aim = hopes[number % len(hopes)], _aimed(bound, draw, RANGE[1] if steps else RANGE[0])
        rows = [trial.genes for trial in front(trials.done(steps) or trials.done(0))]
        rows += [space.drawn(draw) for _ in range(POPULATION - len(rows))]
        for _ in range(GENERATIONS):
            children = [
                space.mutated(space.crossed(draw.choice(rows), draw.choice(rows), draw), draw) for _ in range(CHILDREN)
            ]
            rows = list(dict.fromkeys([*rows, *children]))
            merits = [prediction.merit(aim, hope, STRICT if steps else 1.0) for prediction in predictions.of(rows)]
            rows = [rows[place] for place in sorted(range(len(rows)), key=lambda place: -merits[place])[:POPULATION]]
        new = next((genes for genes in rows if genes not in tried), None)
        if new is not None:
            tried.add(new)
            chosen.append(new)
    return chosen


def _aimed(bound: Bound, draw: random.Random, most: float) -> Bound:
    if bound.lose is not None:
        return Bound(lose=min(0.9, max(bound.lose, EPSILON) * most ** draw.uniform(-0.3, 1)))
    return Bound(faster=max(1.01, (bound.faster or 1) * draw.uniform(*NEAR)))
