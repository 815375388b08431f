"""Networks by evolution or by chance, with progressive dynamic hurdles. So 2019, arXiv:1901.11117, 3.2.

All networks are trained for a few steps. Once some have been, those that are better than the mean of their last few
equals are trained for more, and of these the better ones in full. In the end the best are, of those that the hurdles
held back too: few may have been fast enough to be trained at all. Evolution is that of Real 2019, arXiv:1802.01548: of
a few networks of the population the best has a child, with one part or two changed, and the oldest leaves; the
population begins with the network of the settings, children of it, and as many by chance, and now and then another by
chance enters.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log1p

from greenformers.search.bound import EPSILON, STRICT, Bound
from greenformers.search.network_lab import NetworkLab
from greenformers.search.network_space import Fits, NetworkSpace
from greenformers.search.network_speeds import hopeful
from greenformers.search.space import TRIES, Genes
from greenformers.search.trials import Trial
from greenformers.search.tries import Tries, Turn

POPULATION, TOURNAMENT, BY_CHANCE = 10, 3, 4
"""Networks of a population, how many of them compete to have a child, and one of how many children is by chance: else
all are soon relatives of the first that was fast enough."""

FAILED = (-1, 0.0)
"""The fitness of what cannot be."""

FIRST = 5
"""Networks that are trained for the same steps before there is a hurdle."""

TOP = 3
"""The best networks, which are trained in full."""

FINISHING = 0.2
"""Share of the time that is kept for training the best in full, as long as none was."""


@dataclass(frozen=True)
class NetworkPlan:
    """How much a search does.

    Attributes:
        bound: What the best network must keep to.
        rungs: Steps of training, the fewest first; the last are those of the settings.
        seconds: Seconds that new networks may be tried for.
        seed: Seed of all draws.
    """

    bound: Bound
    rungs: tuple[int, ...]
    seconds: float
    seed: int


class Hurdles:
    """Networks that are trained for more steps the better they are.

    Args:
        space: The networks.
        lab: Where they are trained.
        plan: How much is done.
        tries: What makes the trials.
    """

    def __init__(self, space: NetworkSpace, lab: NetworkLab, plan: NetworkPlan, tries: Tries) -> None:
        self.space, self.lab, self.plan, self.tries = space, lab, plan, tries

    @property
    def over(self) -> bool:
        """Whether no new network is tried: what is left of the time is for training the best in full."""
        reserved = FINISHING * max(0, TOP - len(self._in_full)) / TOP
        return self.tries.trials.seconds > (1 - reserved) * self.plan.seconds

    @property
    def over_now(self) -> bool:
        """Whether the time is over in the middle of a trial."""
        return self.tries.seconds > self.plan.seconds

    @property
    def least(self) -> float:
        """How many times as fast as that of the settings a network must be."""
        return self.plan.bound.faster or 1.0

    def begin(self) -> None:
        """Train the network of the settings, which others are compared with after each number of steps."""
        for steps in self.plan.rungs:
            if self.tries.at_once > 1:
                self.lab.base(steps)  # each process needs it sooner or later, and now all would wait for one
            self.train(self.space.start, steps)

    def train(self, genes: Genes, steps: int) -> Trial:
        """A network trained for so many steps, if that was not done."""
        self.train_all([genes], steps)
        trial = self.tries.trials.of(genes, steps)
        assert trial is not None
        return trial

    def train_all(self, rows: Sequence[Genes], steps: int, over: Callable[[], bool] = lambda: False) -> None:
        """Train networks for so many steps, if that was not done, until it is over."""

        def trial(genes: Genes, turn: Turn) -> Trial:
            timed = (trial.speed for trial in self.tries.trials.done() if trial.genes == genes)
            return self.lab.trial(genes, steps, turn, next(timed, None))

        self.tries.all(rows, steps, trial, over)

    def up(self, rows: Sequence[Genes]) -> None:
        """Train networks for the fewest steps, and then whatever is above its hurdle for more."""
        self.train_all(rows, self.plan.rungs[0])
        for lower, upper in pairwise(self.plan.rungs):
            # The network of the settings, where it is far too slow, would let everything through.
            fast = [trial for trial in self.tries.trials.done(lower) if trial.speed >= self.least]
            recent = fast[-POPULATION:]
            merits = {trial.genes: self.merit(trial) for trial in recent}
            if len(merits) < FIRST:
                return
            hurdle = sum(merits.values()) / len(merits)
            above = sorted((row for row in merits if merits[row] > hurdle), key=lambda row: -merits[row])
            self.train_all(above, upper, lambda: self.over)

    def finish(self) -> None:
        """Train in full the best that were not, until the best few are; one of them also when the time is over."""
        last, missing = self.plan.rungs[-1], max(0, TOP - len(self._in_full))
        rows = dict.fromkeys(trial.genes for trial in self.tries.trials.seen)
        left = [genes for genes in rows if self.is_fast(genes) and self.tries.trials.of(genes, last) is None]
        left.sort(key=self.fitness, reverse=True)
        self.train_all(
            left[:missing], last, lambda: bool(self._in_full) and self.tries.trials.seconds > self.plan.seconds
        )

    @property
    def _in_full(self) -> list[Trial]:
        """Networks other than that of the settings that are fast enough and were trained in full."""
        done = self.tries.trials.done(self.plan.rungs[-1])
        return [trial for trial in done if trial.genes != self.space.start and trial.speed >= self.least]

    def merit(self, trial: Trial) -> float:
        """How good a trial is; of networks that are better than that of the settings, the better they are."""
        gain = log1p(max(0.0, -trial.lost) / EPSILON) if self.plan.bound.lose is None else 0.0
        return self.plan.bound.merit(trial.speed, trial.lost, STRICT) + gain

    def fitness(self, genes: Genes) -> tuple[int, float]:
        """How good a network is: of two, the one that was trained for more steps, or by the trials of as many.

        Losses are those beside the network of the settings after as many steps, which after more of them is harder to
        equal: a network that was held back by a hurdle is no better than what it let pass, though it may have lost
        less. What is too slow is worse than all that is fast enough, and the better the faster; one that cannot be is
        worst.
        """
        last = self._longest(genes)
        if last is None or not last.speed > 0:  # also one whose training for more steps diverged
            return FAILED
        return (last.steps, self.merit(last)) if self.is_fast(genes) else (0, last.speed)

    def is_fast(self, genes: Genes) -> bool:
        """Whether a network was trained, as it is fast enough."""
        last = self._longest(genes)
        return last is not None and last.refused is None and last.speed >= self.least

    def _longest(self, genes: Genes) -> Trial | None:
        seen = [trial for trial in self.tries.trials.seen if trial.genes == genes]
        return max(seen, key=lambda trial: trial.steps, default=None)

    def fresh(self, drawn: Callable[[list[Genes], Fits], Genes]) -> list[Genes]:
        """As many networks as are trained at once, none of which was tried; fewer where there hardly are any.

        Args:
            drawn: Function that draws one, beside those that were just drawn, and not probably too slow, if there are
                others, as another function says.
        """
        seen = self.tries.trials.seen
        may_be_fast = hopeful(seen, [len(values) for values in self.space.values.values()], self.least)
        tried = {trial.genes for trial in seen}
        rows: list[Genes] = []
        for _ in range(self.tries.at_once):
            draws = (drawn(rows, fits) for fits in (may_be_fast, lambda _: True) for _ in range(TRIES))
            genes = next((genes for genes in draws if genes not in tried), None)
            if genes is None:
                break
            tried.add(genes)
            rows.append(genes)
        return rows


def by_evolution(hurdles: Hurdles) -> None:
    """Try children of the best until the time is over, and train the best in full."""
    draw, space = random.Random(hurdles.plan.seed), hurdles.space
    population = [space.start]

    def child(born: list[Genes], fits: Fits) -> Genes:
        return _child(space, [*population, *born], hurdles.fitness, draw, fits)

    while not hurdles.over:
        children = hurdles.fresh(child)
        if not children:
            break
        hurdles.up(children)
        # What is too slow has children that are so too, and would send away what is not.
        population += children if len(population) < POPULATION else filter(hurdles.is_fast, children)
        del population[:-POPULATION]
    hurdles.finish()


def _child(
    space: NetworkSpace,
    population: list[Genes],
    fitness: Callable[[Genes], tuple[int, float]],
    draw: random.Random,
    fits: Fits,
) -> Genes:
    """A child of the best of a few; at the beginning in turns one of the network of the settings and one by chance."""
    if len(population) < POPULATION:
        return space.mutated(space.start, draw, fits) if len(population) % 2 else space.drawn(draw, fits)
    if not draw.randrange(BY_CHANCE):
        return space.drawn(draw, fits)
    return space.mutated(max(draw.sample(population, TOURNAMENT), key=fitness), draw, fits)


def by_chance(hurdles: Hurdles) -> None:
    """Try networks by chance until the time is over, and train the best in full."""
    draw = random.Random(hurdles.plan.seed)
    while not hurdles.over:
        rows = hurdles.fresh(lambda _, fits: hurdles.space.drawn(draw, fits))
        if not rows:
            break
        hurdles.up(rows)
    hurdles.finish()
