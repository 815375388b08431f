"""The search itself: recipes are tried as they are, the best of them healed in rounds with hurdles between.

First every change alone, and recipes by chance; then what is predicted to be best, a few at a time, see
`greenformers.search.propose`. Then recipes are healed: each for a few steps, those that are better than the mean for
more, and so on, which are progressive dynamic hurdles (So 2019, arXiv:1901.11117, 3.2). Every choice depends on the
seed and on what was seen before alone, and the time is that of the trials, so that a search which was stopped goes on
as it would have.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, exp, log
from time import monotonic
from typing import Any

import numpy as np

from greenformers.changes import Change
from greenformers.search.bound import STRICT, Bound
from greenformers.search.healing import HURDLES, UNSURE, Healing
from greenformers.search.lab import Lab
from greenformers.search.propose import Predictions, propose
from greenformers.search.rounding import Rounding
from greenformers.search.space import Genes, Space, changed
from greenformers.search.steps import Steps
from greenformers.search.trials import Trial, Trials
from greenformers.search.tries import Tries, Turn
from greenformers.train.others import Others, each_alone

CHANCE, AT_ONCE = 6, 3
"""Recipes drawn by chance at the beginning at least, and recipes that are proposed at once."""

BY_CHANCE, MANY = 0.1, 100
"""Share of the time, where recipes are healed, until which they are drawn by chance, and the most that are: what was
proposed is alike, and says little of other recipes. Of 60 that were not tried the times were foreseen with a median
error of 16 % by 55 trials, of which 6 were drawn by chance, and of 12 % with 12 more."""

FIRST = 4
"""Recipes that are healed for the same steps before there is a hurdle, at least."""

LITTLE = 0.5
"""A change whose strongest setting brings less than this share of the logarithm of the greatest speed-up of one change
is not healed alone. Healing each change of MiniLM-L6 alone, low rank among them, which brings 1.7x where pruning brings
3.4x, took 8 of the 12 minutes in which an hour's search tells by short healing what to heal in full."""

TRYING, HEALING = 0.2, 0.4
"""Shares of the time after which no more recipes are tried without healing, and after which none are healed but one in
full, which all else only prepares."""

QUICKER = 4.0
"""How many times less than `Lab.step_seconds` a step of healing may take: texts are shorter, products in bf16."""

ASKED = 3
"""Recipes at most that are healed for the fewest steps to see whether they are the one to be healed in full. Four of
six layers, say, take twice the seconds of three a step, as students of half the layers learn less: 4,500 steps by what
was seen of three layers took twice the time that was left for them."""

STEPS = 1000
"""Steps in full, as long as no healing was seen."""

MUCH = 0.5
"""Greatest loss that is aimed at before healing."""


@dataclass(frozen=True)
class Plan:
    """How much a search does.

    Attributes:
        bound: What the best recipe must keep to.
        seconds: Seconds that it may take.
        heals: Whether recipes are healed; else all the time is for trying them as they are.
        seed: Seed of all draws.
    """

    bound: Bound
    seconds: float
    heals: bool
    seed: int = 0

    @property
    def trying(self) -> float:
        """Share of the time after which no more recipes are tried without healing."""
        return TRYING if self.heals else 1.0


class Search:
    """A search.

    Args:
        space: The recipes.
        lab: Where they are made.
        plan: How much is done.
        trials: What was tried before, if anything; trials are added.
        told: Function that is called with each trial that ended.
        clock: Function that gives the time in seconds.
        others: The processes that search together; None for this one alone.

    Attributes:
        notes: What was not done, and why.
    """

    def __init__(
        self,
        space: Space,
        lab: Lab,
        plan: Plan,
        trials: Trials,
        told: Callable[[Trial], None] = lambda _: None,
        clock: Callable[[], float] = monotonic,
        others: Others | None = None,
    ) -> None:
        self.space, self.lab, self.plan, self.trials = space, lab, plan, trials
        self._tries = Tries(trials, told, clock, others, lambda trial: self.lab.know(trial))
        self._rounding = Rounding(space, trials, plan.bound)
        self._steps = Steps(self._rounding, plan.seconds)
        self.notes: list[str] = []

    def run(self) -> None:
        """Try recipes, and heal the best for some steps, until it is time to heal one in full.

        Raises:
            ValueError: No recipe can be made.
        """
        self._check_healing()
        draw = random.Random(self.plan.seed)
        first = [*self.space.singles(), *(self.space.drawn(draw) for _ in range(CHANCE))]
        self._try(first, 0, lambda: self._over(self.plan.trying) and bool(self.trials.done()))
        if not self.trials.done():
            raise ValueError(f"no recipe of the search could be made: {self.trials.seen[0].refused}")
        if self.plan.heals:
            self._try([self.space.drawn(draw) for _ in range(MANY)], 0, lambda: self._over(BY_CHANCE))
        self._rounds(0, self.plan.trying)
        if self.plan.heals:
            self._rounds(HURDLES[0], HEALING)

    def _check_healing(self) -> None:
        """Heal nothing where the fewest steps take more than all of the time for it, however quick they are."""
        if not self.plan.heals or self.trials.healed_before:
            return
        # Measured once: a search that was stopped is to heal as it would have.
        step = self.trials.measured_once("step-seconds", lambda: self.lab.step_seconds)
        least = self._tries.first(HURDLES[0] * step / QUICKER)
        if least > (HEALING - TRYING) * self.plan.seconds:
            self.plan = replace(self.plan, heals=False)
            legal = self.space.legal
            useless = [place for place, slot in enumerate(self.space.slots) if slot[0].needs_healing]
            self.space = replace(self.space, legal=lambda genes: not any(genes[at] for at in useless) and legal(genes))
            whole = least / (HEALING - TRYING) / 60
            self.notes.append(f"Nothing was healed: that takes {whole:,.0f} minutes at least, see --minutes.")

    def best(self) -> Trial:
        """The best trial so far within the bound; where none keeps to it, the nearest.

        Raises:
            ValueError: There is none.
        """
        if not self.trials.done():
            raise ValueError(f"no recipe of the search could be made: {self.trials.seen[-1].refused}")
        return self.plan.bound.nearest(self.trials.done())

    def begin(self, genes: Genes, steps: int) -> bool:
        """Note that a recipe is made elsewhere, until `trials.end`; False where it was given up before, or is now.

        Where several processes make it together, an end of one of them is the end of all, and is not counted.
        """
        before = self.trials.given_up(genes, steps)
        if before is None and self._tries.at_once == 1:
            before = self.trials.begin(genes, steps)
        if before is None:
            return True
        self.trials.give_up(genes, steps, str(before.refused), before.seconds)
        self._tries.passed()
        return False

    def give_up(self, genes: Genes, steps: int, why: str, spent: float = 0.0) -> None:
        """Give up a recipe that was begun elsewhere and cannot be made; the time since the last trial is its own.

        Args:
            genes: The recipe.
            steps: Steps of healing.
            why: The reason.
            spent: Seconds that earlier runs, which were stopped, spent on it.
        """
        self.trials.give_up(genes, steps, why, spent + self._tries.passed())

    @property
    def left(self) -> float:
        """Seconds that are left of the time of the search; below 0 where it took longer."""
        return self.plan.seconds - self._tries.seconds

    def in_full(self, number: int = 0) -> tuple[Genes, int]:
        """The recipe that is to be healed in full, and for how many steps; few or 0 where no time is left for more.

        Args:
            number: How many were healed in full before.
        """
        with each_alone():  # what is healed in full is made by all processes together, and these are not
            self._try_for_long()
            chosen = self._chosen()
            for _ in range(ASKED):
                if chosen.steps <= HURDLES[-1] or any(t.steps for t in self._rounding.alike(chosen.genes)):
                    break
                # How long its steps take, and what they bring back, is seen before many are paid for.
                self._try([chosen.genes], HURDLES[0], lambda: False)
                chosen = self._chosen()
        if any((trial.genes, trial.steps) == (chosen.genes, chosen.steps) for trial in self.trials.done()):
            return chosen.genes, chosen.steps  # nothing is worth more
        before, part = self._steps.in_full(chosen.genes), self._steps.affordable(chosen.genes, number)
        return chosen.genes, before + part if before + part > HURDLES[-1] else chosen.steps

    def rounded_else(self, genes: Genes, steps: int) -> Genes | None:
        """A recipe that rounds other weights of what was healed in full, if it is worth making; see `Rounding.other`.

        Args:
            genes: The recipe that was healed.
            steps: Steps for which it was.
        """
        usual = np.median([trial.seconds for trial in self.trials.done(0)])
        left = self.plan.seconds - self.trials.seconds  # the same in all processes, which make it together
        return self._rounding.other(genes, steps) if left > usual else None

    def healed_alike(self, genes: Genes) -> list[Trial]:
        """Trials of a recipe, and of those that are healed as it is and round other weights."""
        return self._rounding.alike(genes)

    def _chosen(self) -> Trial:
        """What is worth most to be healed for all of the time left; the best so far, where nothing is.

        It is healed in parts, as after the first of them another may be worth more.
        """
        done = sorted(self.trials.done(), key=lambda trial: trial.steps)
        longest = {trial.genes: trial for trial in done}.values()  # which says most of what healing does to a recipe
        expected = self.expected([*longest])
        failed = {trial.genes for trial in self.trials.seen if trial.refused is not None and trial.steps}
        longer = [t for t in [*expected, *self._rounded(expected)] if t.steps > HURDLES[-1]]
        longer = [t for t in longer if t.genes not in failed and self.trials.of(t.genes, t.steps) is None]
        return self.plan.bound.hoped(self.plan.bound.nearest(done), longer, UNSURE)

    def _try_for_long(self) -> None:
        """Try, as they are, the recipes that are predicted to be best when healed for as long as there is time.

        What was healed for a little was chosen for the loss that it has then, and by what was known before.
        """
        nearest = self.plan.bound.nearest(self.expected(self.trials.done()))
        steps = self._steps.affordable(nearest.genes)
        if steps > HURDLES[-1]:
            draw = random.Random(f"{self.plan.seed} in full {len(self.trials.seen)}")
            new = propose(self.space, self.trials, self.plan.bound, draw, self._count, steps=steps)
            self._try(new, 0, lambda: False)

    def _rounded(self, trials: Sequence[Trial]) -> list[Trial]:
        """These trials with changes that round weights added: what is faster by them hardly depends on the rest."""
        predictions = Predictions(self.space, self.trials, 0)
        tried = {trial.genes for trial in self.trials.seen}
        rows = []
        for trial in trials:
            steps = self._steps.affordable(trial.genes)
            if trial.steps != steps or steps <= HURDLES[-1]:  # with other changes what was healed in full begins anew
                continue
            for place, slot in enumerate(self.space.slots):
                genes = (*trial.genes[:place], 1, *trial.genes[place + 1 :])
                if slot[0].freezes and not trial.genes[place] and genes not in tried and self.space.legal(genes):
                    as_is, rounded = predictions.of([trial.genes, genes])
                    lost = trial.lost + max(0.0, rounded.lost() - as_is.lost())
                    speed = trial.speed * rounded.speed / as_is.speed
                    rows.append(replace(trial, genes=genes, steps=steps, speed=speed, lost=lost))
        return rows

    def expected(self, trials: Sequence[Trial]) -> list[Trial]:
        """What trials will be where they are healed for all of the time left.

        The loss of one that was healed goes down with each doubling of the steps, see `Healing.fall`. One that was
        healed in full is healed on, see `parts`.

        Args:
            trials: The trials.
        """
        healing = Healing(self.space, self.trials)
        steps = [(trial, self._steps.affordable(trial.genes)) for trial in trials]
        return [
            self._healed(trial, trial.steps + more if trial.steps > HURDLES[-1] else max(trial.steps, more), healing)
            for trial, more in steps
        ]

    @staticmethod
    def _healed(trial: Trial, steps: int, healing: Healing) -> Trial:
        if steps <= HURDLES[-1] or steps == trial.steps:
            return trial
        if not trial.steps:
            (left,) = healing.left([trial.genes], steps, [trial.lost])
            return replace(trial, steps=steps, lost=min(trial.lost, max(trial.lost, 0.0) * exp(left)))
        change = healing.change(trial.steps, steps, trial.genes, trial.lost)
        return replace(trial, steps=steps, lost=trial.lost * exp(change))

    def recipe(self, genes: Genes, steps: int) -> tuple[Change, ...]:
        """The changes of a recipe, healing among them."""
        recipe = self.space.recipe(genes)
        if not steps:
            return recipe
        before = self.space.recipe(self._rounding.before(genes))
        late = (change for change in recipe if change not in before)
        return (*self.lab.healed(before, *self.parts(genes, steps)), *late)

    def parts(self, genes: Genes, steps: int) -> tuple[int, ...]:
        """The steps of healing one after the other, see `Steps.parts`."""
        return self._steps.parts(genes, steps)

    def add(self, genes: Genes, steps: int, model: Callable[[], Any], spent: float = 0.0) -> Trial:
        """Judge and time a recipe that was made elsewhere.

        Args:
            genes: The recipe.
            steps: Steps of healing.
            model: Function that reads what was made.
            spent: Seconds that an earlier run, which was stopped, spent on making it.
        """
        if self.trials.on_disk(genes, steps) is None:
            self._tries.spent(spent)
        self._tries.all([genes], steps, lambda _, turn: self.lab.trial(genes, steps, model, turn))
        trial = self.trials.of(genes, steps)
        assert trial is not None
        return trial

    def _rounds(self, steps: int, share: float) -> None:
        number = 0
        while not self._over(share):
            draw = random.Random(f"{self.plan.seed} {steps} {number}")
            count = self._count
            new = self._alone() if steps and not number else []
            new = new or propose(self.space, self.trials, self._aim(steps), draw, count, steps=steps)
            if steps:
                self._try(new, 0, lambda: self._over(share))
            self._try([genes for genes in new if not self._refused(genes)], steps, lambda: self._over(share))
            if steps and self._over((self.plan.trying + share) / 2):  # before, others teach more than more of the same
                self._hurdles(share)
            if not new:
                return
            number += 1

    @property
    def _count(self) -> int:
        """Recipes that are proposed at once: as many that no process waits."""
        return ceil(AT_ONCE / self._tries.at_once) * self._tries.at_once

    def _alone(self) -> list[Genes]:
        """Recipes of one change that are healed first, as what healing brings back differs by change.

        Not of changes that bring little speed at their strongest. What loses most as it is may come back soonest, so
        that its loss says nothing.
        """
        gains: dict[int, float] = {}
        for trial in self.trials.done(0):
            places = changed(trial.genes)
            if len(places) == 1:
                gains[places[0]] = max(log(trial.speed), gains.get(places[0], 0.0))
        rows = {changed(genes)[0]: genes for genes in self.space.alone() if not self._refused(genes)}
        most = max((gains.get(place, 0.0) for place in rows), default=0.0)
        return [genes for place, genes in rows.items() if gains.get(place, most) >= LITTLE * most]

    def _hurdles(self, share: float) -> None:
        """Heal for more steps what is above the mean of its equals, by what is expected of it."""
        for lower, upper in pairwise(HURDLES):
            done = self.expected(self.trials.done(lower))
            merits = {trial.genes: self.plan.bound.merit(trial.speed, trial.lost, STRICT) for trial in done}
            if len(merits) < FIRST:
                return
            hurdle = sum(merits.values()) / len(merits)
            above = sorted((genes for genes in merits if merits[genes] >= hurdle), key=lambda genes: -merits[genes])
            self._try(above, upper, lambda: self._over(share))

    def _try(self, rows: Sequence[Genes], steps: int, over: Callable[[], bool]) -> None:
        """Make, judge and time recipes, if that was not done, until it is over."""

        def make(genes: Genes, turn: Turn) -> Trial:
            return self.lab.trial(genes, steps, lambda: self.lab.made(self.recipe(genes, steps)), turn)

        self._tries.all(rows, steps, make, over)

    def _refused(self, genes: Genes) -> bool:
        """Whether a recipe could not be made or judged as it is: healed it could not either."""
        trial = self.trials.of(genes, 0)
        return trial is not None and trial.refused is not None

    def _over(self, share: float) -> bool:
        return self.trials.seconds > share * self.plan.seconds

    def _aim(self, steps: int) -> Bound:
        """The bound for recipes with few steps, from which those that are healed in full keep to that asked for."""
        lose = self.plan.bound.lose
        if not steps or not lose:
            return self.plan.bound
        healed = [trial for trial in self.trials.done() if trial.steps]
        longer = max(steps, self._steps.affordable(healed[-1].genes)) if healed else STEPS
        healing, before = Healing(self.space, self.trials), lose
        for _ in range(3):  # how much comes back depends on how much there is
            before = lose * exp(-healing.change(steps, longer, lost=before))
        return Bound(lose=min(MUCH, before))
