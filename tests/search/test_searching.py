"""The search on recipes whose speed and loss are known: it finds the best there is, and goes on as it would have."""

import itertools
import random
import sys
from copy import deepcopy
from dataclasses import replace
from math import log
from statistics import mean

import pytest
from side_by_side import each

from greenformers.changes import Heal, Int8, Layers, LowRank, Narrow, Prune
from greenformers.search.bound import NOISE, STRICT, Bound
from greenformers.search.healing import AT, HURDLES, LATER
from greenformers.search.search import Plan, Search
from greenformers.search.space import Space
from greenformers.search.trials import Trial, Trials, front
from greenformers.train.run import Stopped

SLOTS = (
    tuple(Layers(keep) for keep in (5, 4, 3, 2)),
    tuple(Prune(tenths / 10) for tenths in range(9, 1, -1)),
    tuple(LowRank(keep=tenths / 10) for tenths in range(9, 2, -1)),
    (Int8(),),
)
SPACE = Space(SLOTS, lambda genes: genes != (0, 7, 7, 1))
SECONDS = 400.0


class KnownLab:
    """Speed and loss by a formula with interactions; a healed recipe loses less with a power of the steps."""

    refuses = ((0, 0, 3, 0),)
    step_seconds = 0.0

    def trial(self, genes, steps, make, turn):
        if genes in self.refuses:
            return Trial(genes, steps, refused="refused")
        speed, lost = self.figures(genes, steps)
        return Trial(genes, steps, turn(lambda: speed), lost, smaller=1.0)

    @staticmethod
    def figures(genes, steps):
        a, b, c, d = SPACE.strengths(genes)
        speed = 1 / ((1 - 0.6 * a) * (1 - 0.5 * b) * (1 - 0.3 * c) * (1 - 0.5 * d))
        lost = 0.1 * a**2 + 0.15 * b**2 + 0.3 * c**2 + 0.002 * d + 0.2 * a * b + 0.3 * b * c
        return speed, lost * (1 + min(steps, AT) / 10) ** -0.3 * max(1.0, steps / AT) ** (-0.3 * LATER)

    def know(self, trial):
        pass

    def healed(self, recipe, *parts):
        return (*recipe, *map(Heal, parts))


def searched(folder, bound, seed=0, told=lambda _: None, seconds=SECONDS, heals=True, others=None):
    clock = itertools.count()
    trials = Trials(folder / "trials.jsonl", 0 if others is None else others.rank)
    search = Search(
        SPACE, KnownLab(), Plan(bound, seconds, heals, seed), trials, told, clock=lambda: float(next(clock)),
        others=others,
    )  # fmt: skip
    search.run()
    return search


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A search within a loss, to its end."""
    return searched(tmp_path_factory.mktemp("whole"), Bound(lose=0.02))


@pytest.fixture(scope="module")
def chosen(whole, tmp_path_factory):
    """A copy of this search, and the recipe that it heals in full, with the steps."""
    search = deepcopy(whole)
    search.trials.path = tmp_path_factory.mktemp("chosen") / "trials.jsonl"
    return search, search.in_full()


@pytest.fixture
def few(monkeypatch):
    """Few generations of what is proposed: for tests that do not ask how good it is."""
    monkeypatch.setattr("greenformers.search.propose.GENERATIONS", 2)


def best_of_all(bound, steps=0):
    every = itertools.product(*(range(len(slot) + 1) for slot in SLOTS))
    trials = [Trial(genes, steps, *KnownLab.figures(genes, steps)) for genes in every if SPACE.legal(genes)]
    return bound.nearest([trial for trial in trials if trial.genes not in KnownLab.refuses])


@pytest.mark.parametrize("bound", [Bound(lose=0.02), Bound(faster=3.0)])
def test_it_finds_nearly_the_best_of_all_recipes(bound, tmp_path):
    search, best = searched(tmp_path, bound, heals=False), best_of_all(bound)
    assert len(search.trials.seen) < 0.35 * 640
    chosen = search.best()
    assert bound.met_by(chosen)
    assert chosen.speed >= 0.95 * best.speed if bound.lose else chosen.lost <= best.lost + 0.005


@pytest.mark.parametrize("bound", [Bound(lose=0.02), Bound(faster=3.0)])
def test_it_is_better_than_as_many_recipes_by_chance(bound, tmp_path):
    merits = []
    for seed in range(3):
        search = searched(tmp_path / str(seed), bound, seed, heals=False)
        draw = random.Random(seed)
        genes = {SPACE.drawn(draw) for _ in range(len(search.trials.seen))} - set(KnownLab.refuses)
        chance = bound.nearest([Trial(row, 0, *KnownLab.figures(row, 0)) for row in sorted(genes)])
        merits.append([bound.merit(trial.speed, trial.lost) for trial in (search.best(), chance)])
    assert sum(ours for ours, _ in merits) > sum(theirs for _, theirs in merits)


def test_healing_goes_by_hurdles_and_ends_with_one_in_full(whole, chosen):
    search, bound = whole, whole.plan.bound
    lower, upper = (search.trials.done(steps) for steps in HURDLES)
    assert len(lower) > len(upper) >= 2
    alone = [(2, 0, 0, 0), (0, 4, 0, 0)]
    assert [trial.genes for trial in lower[:2]] == alone, "at first what takes something away, by itself"
    assert all(search.trials.of(trial.genes, 0) for trial in lower)
    passed = {trial.genes for trial in upper}
    hoped = search.expected(lower)  # of what is left to each
    merits = {trial.genes: bound.merit(trial.speed, trial.lost, STRICT) for trial in hoped}
    assert mean(merits[genes] for genes in passed) > mean(merits.values())
    _, (genes, steps) = chosen
    assert steps > HURDLES[-1]
    speed, lost = KnownLab.figures(genes, steps)
    assert speed > best_of_all(bound).speed
    assert lost <= 1.3 * 0.02, "the loss in full is foreseen"


def test_where_healing_in_full_brought_little_another_recipe_is_next(chosen, tmp_path):
    search, (genes, steps) = deepcopy(chosen)
    search.trials.path = tmp_path / "trials.jsonl"  # what is added here is of this test alone
    before = search.trials.of(genes, 0) or Trial(genes, 0, *KnownLab.figures(genes, 0))
    assert before.lost > 0.02
    search.trials.add(Trial(genes, steps, before.speed, before.lost, smaller=1.0, seconds=1.0))
    other, longer = search.in_full(1)
    assert other != genes
    assert longer > HURDLES[-1]
    search.trials.add(Trial(other, steps, 1.0, 0.019, smaller=1.0, seconds=SECONDS))
    assert search.in_full(1)[1] in (0, *HURDLES, steps), "no time is left"


@pytest.mark.usefixtures("few")
def test_one_that_was_stopped_ends_with_the_same_trials(tmp_path, monkeypatch):
    bound, seconds = Bound(lose=0.02), 150
    whole = searched(tmp_path / "whole", bound, seconds=seconds)
    calls, trial = [], KnownLab.trial

    def counted(lab, genes, steps, *given):
        calls.append((genes, steps))
        return trial(lab, genes, steps, *given)

    monkeypatch.setattr(KnownLab, "trial", counted)
    for after in (9, len(whole.trials.seen) - 2):
        left = iter(range(after, -1, -1))

        def stop(_, left=left):
            if not next(left):
                raise Stopped(15)

        folder = tmp_path / str(after)
        with pytest.raises(Stopped):
            searched(folder, bound, told=stop, seconds=seconds)
        calls.clear()
        again = searched(folder, bound, seconds=seconds)
        assert calls == [(t.genes, t.steps) for t in whole.trials.seen][after + 1 :], "what is known is not made again"
        assert [(t.genes, t.steps) for t in again.trials.seen] == [(t.genes, t.steps) for t in whole.trials.seen]
        assert front(again.trials.done()) == front(whole.trials.done())


def test_all_that_is_timed_beside_the_same_has_the_same_gain(tmp_path):
    trials = Trials(tmp_path / "trials.jsonl")
    first, second = (
        Trial((gene,), speed=2 * gain, lost=0.0, beside="int8", rounded=gain) for gene, gain in ((1, 1.0), (2, 3.0))
    )
    trials.add(Trial((0,), speed=2.0, lost=0.0))
    assert trials.add(first).speed == 2
    assert trials.add(second).speed == 4, "twice the median of 1 and 3"
    assert [(trial.speed, trial.rounded) for trial in trials.seen] == [(2, 1), (4, 2), (4, 2)]
    again = Trials(tmp_path / "trials.jsonl")
    for trial in (Trial((0,), speed=2.0), first, second):
        again.add(again.on_disk(trial.genes, 0))
    assert str(again.seen) == str(trials.seen)


def test_steps_in_full_are_counted_by_the_seconds_of_the_recipe_itself(tmp_path):
    def after(*seen):
        search = Search(SPACE, KnownLab(), Plan(Bound(lose=0.02), 1_000.0, True), Trials(tmp_path / "none.jsonl"))
        for genes, steps, seconds in seen:
            search.trials.seen.append(Trial(genes, steps, 2.0, 0.01, seconds=seconds))
        return search

    few, many = (3, 0, 0, 0), (0, 1, 0, 0)
    search = after((few, 0, 10.0), (many, 0, 10.0), (few, 100, 30.0), (many, 100, 110.0))
    # 45 % of the 840 seconds that are left, less those of making it.
    assert [search._steps.affordable(genes, 0) for genes in (few, many)] == [1_800, 300]
    assert search._steps.affordable((0, 0, 1, 0), 0) == 600, "the median of both"
    # The first recipe with a change measures what it needs, once: that makes no step cheaper.
    rows = (few, 0, 200.0), (many, 0, 10.0), ((0, 0, 1, 0), 0, 10.0), (few, 100, 60.0)
    assert after(*rows)._steps.affordable(few, 0) == 200
    # Where the seconds of the healing alone are known, these count.
    search = after(*rows)
    search.trials.seen[-1] = replace(search.trials.seen[-1], training=25.0)
    assert search._steps.affordable(few, 0) == 400


def test_changes_that_bring_little_speed_are_not_healed_alone(tmp_path):
    search = Search(SPACE, KnownLab(), Plan(Bound(lose=0.02), 1_000.0, True), Trials(tmp_path / "none.jsonl"))
    for genes, speed in (((4, 0, 0, 0), 3.0), ((0, 8, 0, 0), 2.0), ((0, 0, 7, 0), 1.3), ((0, 0, 0, 1), 4.0)):
        search.trials.seen.append(Trial(genes, 0, speed, 0.5))
    assert search._alone() == [(2, 0, 0, 0), (0, 4, 0, 0)]


@pytest.mark.usefixtures("few")
def test_processes_that_search_together_know_the_same_and_one_writes(tmp_path):
    told = [[], []]

    def work(others):
        return searched(tmp_path, Bound(lose=0.02), told=told[others.rank].append, seconds=60, others=others)

    first, second = each(work, 2)
    assert list(map(str, second.trials.seen)) == list(map(str, first.trials.seen))
    assert (tmp_path / "trials.jsonl").read_text().count("\n") == len(first.trials.seen) == len(told[0])
    assert told[1] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-seconds.txt", "trials.jsonl"]
    alone = searched(tmp_path / "alone", Bound(lose=0.02), seconds=60)
    assert len(first.trials.seen) > 1.5 * len(alone.trials.seen), "two at once"
    again, _ = each(work, 2)
    assert list(map(str, again.trials.seen)) == list(map(str, first.trials.seen)), "what is on disk is not made again"


def test_what_ends_the_process_twice_is_skipped_and_said(tmp_path):
    class Killed(BaseException):
        pass

    class Deadly(KnownLab):
        def trial(self, genes, steps, make, turn):
            if genes == (2, 0, 0, 0):
                raise Killed
            return super().trial(genes, steps, make, turn)

    def run(file):
        search = Search(SPACE, Deadly(), Plan(Bound(lose=0.02), SECONDS, False), Trials(file), clock=lambda: 0.0)
        end = search.trials.end
        # As where the process has no time left for it.
        search.trials.end = lambda: None if isinstance(sys.exception(), Killed) else end()
        search._rounds = lambda *_: None
        search.run()
        return search.trials

    for _ in range(Trials.MOST):
        with pytest.raises(Killed):
            run(tmp_path / "trials.jsonl")
    assert Trials(tmp_path / "trials.jsonl")._on_disk, "what was made before is read again each time"
    trials = run(tmp_path / "trials.jsonl")
    (skipped,) = [trial for trial in trials.seen if trial.genes == (2, 0, 0, 0)]
    assert skipped.refused == "it ended the process 2 times: out of memory, or a fault"
    assert len(trials.done()) > 10


@pytest.mark.usefixtures("few")
def test_what_was_healed_in_full_and_missed_is_healed_on(tmp_path):
    search = searched(tmp_path, Bound(lose=0.02), seconds=200)
    genes, steps = search.in_full()
    assert steps > HURDLES[-1]
    speed = max(trial.speed for trial in search.trials.done()) + 1
    search.trials.add(Trial(genes, steps, speed, 0.021, 1.0, seconds=1.0))
    (expected,) = search.expected([search.trials.of(genes, steps)])
    total = expected.steps
    assert total > steps
    assert expected.lost < 0.021
    assert search.parts(genes, total) == (steps, total - steps)
    assert [change.steps for change in search.recipe(genes, total) if change.trains] == [steps, total - steps]
    search.trials.add(Trial(genes, total, speed, 0.019, 1.0, seconds=1.0))
    assert search.parts(genes, total) == (steps, total - steps), "which stays its recipe"
    assert search.parts(genes, steps) == (steps,)


def test_what_rounds_and_loses_little_comes_behind_healing_and_needs_none_of_its_own(tmp_path):
    def after(*rows, lost=0.002):
        search = Search(SPACE, KnownLab(), Plan(Bound(lose=0.02), 1_000.0, True), Trials(tmp_path / "none.jsonl"))
        search.trials.seen.append(Trial((0, 0, 0, 1), 0, 2.0, lost, seconds=10.0))
        search.trials.seen += [Trial(genes, steps, speed, own, seconds=s) for genes, steps, speed, own, s in rows]
        return search

    plain, rounded = (3, 0, 0, 0), (3, 0, 0, 1)
    rows = ((plain, 0, 2.5, 0.06, 10.0), (rounded, 0, 5.0, 0.062, 10.0), (plain, 100, 2.5, 0.03, 30.0))
    healed = (plain, 600, 2.5, 0.015, 250.0)
    search = after(*rows, healed)
    assert search.recipe(rounded, 600) == (Layers(3), Heal(600), Int8())
    assert search.recipe(rounded, 900) == (Layers(3), Heal(600), Heal(300), Int8())
    assert search.rounded_else(plain, 600) == rounded, "twice as fast at the same loss"
    affordable = search._steps.affordable(plain)
    search = after(*rows, healed, (rounded, 600, 5.0, 0.0155, 10.0))
    assert search.rounded_else(plain, 600) is search.rounded_else(rounded, 600) is None, "both are known"
    assert search._steps.affordable(rounded) == pytest.approx(affordable, abs=100), "what is not healed costs no step"
    search = after(*rows, (rounded, 600, 5.0, 0.021, 250.0))
    assert search.rounded_else(rounded, 600) == plain, "which loses less, where the bound is missed"
    assert after(*rows, (plain, 600, 2.5, 0.04, 250.0)).rounded_else(plain, 600) is None, "neither keeps the bound"
    # Where rounding loses more, healing is aware of it, and each is healed by itself.
    search = after(*rows, healed, lost=0.01)
    assert search.recipe(rounded, 600) == (Layers(3), Int8(), Heal(600)), "as the laboratory puts it"
    assert search.rounded_else(plain, 600) is None


@pytest.mark.usefixtures("few")
def test_a_bound_that_cannot_be_met_ends_with_the_nearest(tmp_path):
    for bound in (Bound(lose=0.0), Bound(faster=100.0)):
        search = searched(tmp_path / str(bound.lose), bound, seconds=150)
        best = search.best()
        assert not bound.met_by(best)
        if bound.lose is not None:
            assert best.lost == min(trial.lost for trial in search.trials.done())
        else:
            fastest = max(trial.speed for trial in search.trials.done())
            alike = [trial for trial in search.trials.done() if trial.speed >= (1 - NOISE) * fastest]
            assert best.lost == min(trial.lost for trial in alike)
            assert search.in_full()[1] > HURDLES[-1], "and that one is healed"


def test_a_recipe_has_one_speed_however_often_it_is_timed(tmp_path):
    """One that was fast enough by a lucky timing is so healed as well, or not at all."""
    trials = Trials(tmp_path / "trials.jsonl")
    for steps, speed in ((0, 3.02), (100, 2.97), (1000, 3.01)):
        trials.add(Trial((1, 0, 0, 0), steps, speed, 0.04 / (1 + steps), 1.0))
    trials.add(Trial((2, 0, 0, 0), 0, 2.0, 0.1, 1.0))
    assert [trial.speed for trial in trials.seen] == [3.01, 3.01, 3.01, 2.0]
    assert Bound(faster=3.0).nearest(trials.done()).steps == 1000


def test_what_cannot_be_made_in_full_is_given_up_for_another(chosen, tmp_path):
    search, (genes, steps) = deepcopy(chosen)
    search.trials.path = tmp_path / "trials.jsonl"
    assert search.begin(genes, steps)
    search.trials.end()
    search.give_up(genes, steps, "it diverged", 1.0)
    assert not search.begin(genes, steps)
    other, _ = search.in_full()
    assert other != genes
    again = Trials(tmp_path / "trials.jsonl")
    assert again.given_up(genes, steps).refused == "it diverged"


@pytest.mark.usefixtures("few")
def test_nothing_is_healed_where_the_fewest_steps_take_too_long(tmp_path):
    class Slow(KnownLab):
        step_seconds = 100.0

    clock = itertools.count()
    search = Search(SPACE, Slow(), Plan(Bound(lose=0.02), 120.0, True), Trials(tmp_path / "trials.jsonl"),
                    clock=lambda: float(next(clock)))  # fmt: skip
    search.run()
    assert search.notes == ["Nothing was healed: that takes 208 minutes at least, see --minutes."]
    assert {trial.steps for trial in search.trials.seen} == {0}
    assert search.trials.seconds > 0.5 * 120, "all of the time is for trying recipes as they are"
    assert search.in_full()[1] == 0
    quick = Search(SPACE, KnownLab(), search.plan, Trials(tmp_path / "trials.jsonl"), clock=lambda: 0.0)
    quick.plan = replace(quick.plan, heals=True)
    quick.run()
    assert quick.notes == search.notes, "a minute that is quicker does not change what a search that was stopped does"


def test_what_is_of_no_use_without_healing_is_not_tried_where_nothing_is_healed(tmp_path):
    class Slow:
        step_seconds = 1e6

        def trial(self, genes, steps, make, turn):
            return Trial(genes, steps, 1.0 + sum(genes), 0.1, smaller=1.0)

    space = Space((SPACE.slots[0], SPACE.slots[1], (Narrow(16),)), lambda _: True)
    clock = itertools.count()
    search = Search(space, Slow(), Plan(Bound(lose=0.02), 20.0, True), Trials(tmp_path / "trials.jsonl"),
                    clock=lambda: float(next(clock)))  # fmt: skip
    search.run()
    assert len(search.trials.seen) > 4
    assert not any(trial.genes[2] for trial in search.trials.seen)


def test_of_two_that_lose_the_same_the_faster_is_best():
    slow, quick = Trial((1,), 0, 1.6, 0.0, 1.0), Trial((2,), 0, 2.4, 0.0, 1.0)
    assert Bound(faster=1.5).nearest([slow, quick]) == quick
    healed = [replace(quick, steps=steps, lost=lost) for steps, lost in ((0, 0.025), (100, 0.012), (300, 0.02))]
    assert Bound(lose=0.03).nearest(healed).steps == 100  # one recipe has one speed
    assert Bound(lose=0.0).nearest([replace(trial, lost=0.1) for trial in (slow, quick)]).speed == 2.4
    longer = replace(slow, steps=900)
    assert Bound(faster=1.5).hoped(slow, [replace(longer, speed=2.0)], 0.5) == slow, "a tie is worth no minutes"


@pytest.mark.usefixtures("few")
def test_what_cannot_be_as_it_is_is_not_healed(tmp_path):
    class WithoutLayers(KnownLab):
        def trial(self, genes, steps, make, turn):
            if genes[0]:
                return Trial(genes, steps, refused="its outputs have no cosine to those of the original")
            return super().trial(genes, steps, make, turn)

    clock = itertools.count()
    search = Search(SPACE, WithoutLayers(), Plan(Bound(lose=0.02), SECONDS, True), Trials(tmp_path / "trials.jsonl"),
                    clock=lambda: float(next(clock)))  # fmt: skip
    search.run()
    healed = [trial for trial in search.trials.seen if trial.steps]
    assert len(healed) > 5
    assert not any(trial.genes[0] for trial in healed)


def test_a_space_with_nothing_left_ends_at_once(tmp_path):
    space = Space(((Int8(),),), lambda _: True)

    class Alike(KnownLab):
        @staticmethod
        def figures(*_):
            return 2.0, 0.001

    search = Search(space, Alike(), Plan(Bound(lose=0.01), 1e9, True), Trials(tmp_path / "t.jsonl"), clock=lambda: 0.0)
    search.run()
    assert [(trial.genes, trial.steps) for trial in search.trials.seen] == [((1,), 0), ((1,), HURDLES[0])]


def test_merit_is_what_is_asked_for_less_what_is_beyond_the_bound():
    lose = Bound(lose=0.01)
    assert lose.merit(2.0, 0.0) == lose.merit(2.0, 0.01) == log(2)
    assert lose.merit(3.0, 0.02) < log(3)
    assert lose.merit(2.0, 0.03) < lose.merit(2.0, 0.02)
    faster = Bound(faster=2.0)
    assert faster.merit(2.0, 0.01) == faster.merit(9.0, 0.01) > faster.merit(2.0, 0.02)
    assert faster.merit(1.9, 0.01) < faster.merit(2.0, 0.01)


def test_what_is_healed_in_full_is_worth_the_time():
    bound = Bound(lose=0.01)
    best, safe, bold = (
        Trial((at,), 0, speed, lost) for at, speed, lost in ((0, 2.0, 0.008), (1, 2.2, 0.005), (2, 4.0, 0.012))
    )
    assert bound.hoped(best, [safe, bold], 0.3) == bold, "0.29 x log 2 of gain, and 0.98 x log 1.1"
    assert bound.hoped(best, [safe, bold], 0.05) == safe, "where it is known better, 0.012 is beyond the bound"
    slow, hopeless = Trial((3,), 0, 1.9, 0.001), Trial((4,), 0, 9.0, 0.03)
    assert bound.hoped(best, [slow, hopeless], 0.3) == best
    beyond = Trial((5,), 0, 3.0, 0.05)
    assert bound.hoped(beyond, [hopeless], 0.3) == hopeless, "what is nearest, where nothing keeps to the bound"
    assert bound.hoped(beyond, [safe, hopeless], 0.3) == safe
    speed = Bound(faster=2.0)
    assert speed.hoped(best, [safe, bold, slow], 0.3) == safe, "the least loss of what is fast enough"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "not both"),
        ({"lose": 0.1, "faster": 2.0}, "not both"),
        ({"lose": 1.5}, "below 100 %, got 1.5"),
        ({"lose": -0.1}, "at least 0 %"),
        ({"faster": 0.5}, "above 1x and finite, got 0.5x"),
    ],
)
def test_a_bound_is_one_of_two_and_in_range(given, said):
    with pytest.raises(ValueError, match=said):
        Bound(**given)


def test_a_line_that_a_full_disk_cut_off_is_lost_alone(tmp_path):
    path = tmp_path / "trials.jsonl"
    trials = Trials(path)
    trials.add(Trial((0, 1), 0, 2.0, 0.1, 1.0))
    path.write_text(path.read_text() + '{"genes": [1, 1], "st')
    path.with_suffix(".begun").write_text("")
    again = Trials(path)
    assert again.on_disk((0, 1), 0).speed == 2.0
    assert again.begin((2, 2), 0) is None
    again.end()
    again.add(Trial((2, 2), 0, 3.0, 0.1, 1.0))
    assert Trials(path).on_disk((2, 2), 0).speed == 3.0


def test_what_is_healed_a_little_does_not_outvote_what_is_timed_again(tmp_path):
    trials, genes = Trials(tmp_path / "trials.jsonl"), (1, 0, 0, 0)
    for steps, speed in ((0, 3.02), (100, 3.02), (300, 3.02), (1000, 2.8)):
        trials.add(Trial(genes, steps, speed, 0.0))
    assert [trial.speed for trial in trials.seen] == pytest.approx([2.91] * 4)
