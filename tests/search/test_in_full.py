"""What is made in full: it is made once, also where a call was stopped, and what cannot be made gives way."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from greenformers.changes import Int8, Layers
from greenformers.compress.job import Job
from greenformers.compress.unfinished import steps_of
from greenformers.search import in_full
from greenformers.search.bound import Bound
from greenformers.search.in_full import InFull
from greenformers.search.rounding import Rounding
from greenformers.search.search import Plan, Search
from greenformers.search.space import Space
from greenformers.search.trials import Trial, Trials
from greenformers.train.run import Stopped

SPACE = Space(((Layers(2), Layers(1)),), lambda _: True)


class KnownLab:
    """Two recipes, of which the faster one loses a tenth of it when healed."""

    def trial(self, genes: tuple[int, ...], steps: int, make: Any, turn: Any) -> Trial:
        return Trial(genes, steps, 1.0 + genes[0], 0.2 * genes[0] / (1 + 9 * bool(steps)), smaller=1.0)

    def know(self, trial: Trial) -> None:
        pass

    def healed(self, recipe: tuple[Any, ...], *parts: int) -> tuple[Any, ...]:
        return recipe


class OneByOne(Search):
    """A search that heals the fastest recipe in full, then the next."""

    def in_full(self, number: int = 0) -> tuple[tuple[int, ...], int]:
        failed = {trial.genes for trial in self.trials.seen if trial.refused}
        return ((2,) if (2,) not in failed else (1,)), 400


def begun(folder: Path, clock: Callable[[], float] = lambda: 0.0) -> InFull:
    search = OneByOne(
        SPACE, KnownLab(), Plan(Bound(lose=0.1), 100.0, True), Trials(folder / "trials.jsonl"),  # type: ignore[arg-type]
        clock=clock,
    )  # fmt: skip
    search._try([(1,), (2,)], 0, lambda: False)
    return InFull(search, "MODEL", Job(), {}, 0, folder, {}, lambda *_: None)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """The places that recipes are made at, and whether they are healed there; what is healed keeps its steps."""
    places: list[tuple[str, bool]] = []

    def run(_model: str, _recipe: Any, place: Path, *_: Any, keeps: bool, **_options: Any) -> Any:
        places.append((place.name, keeps))
        if keeps:
            steps_of(place).mkdir(parents=True)
        return "report", [], []

    monkeypatch.setattr(in_full, "run", run)
    return places


def test_what_was_healed_before_a_stop_is_not_healed_again(
    tmp_path: Path, runs: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = begun(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Search, "add", lambda *_: (_ for _ in ()).throw(Stopped(15)))
        with pytest.raises(Stopped):
            work.heal()
    again = begun(tmp_path)
    again.heal()
    assert runs == [("made-2-400", True)]
    assert again.search.trials.of((2,), 400) is not None
    result = again.best()
    assert (result.best.genes, result.best.steps, result.report) == ((2,), 400, "report")
    assert runs[1:] == [("result", False)], "it is judged and measured once, in the end"


def test_what_cannot_be_made_gives_way_and_its_time_counts_once(
    tmp_path: Path, runs: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, now = in_full.run, [0.0]
    work = begun(tmp_path, lambda: now[0])

    def run(model: str, recipe: Any, place: Path, *given: Any, **options: Any) -> Any:
        now[0] += 10
        if place.name == "made-2-400":
            raise RuntimeError("it diverged")
        return plain(model, recipe, place, *given, **options)

    monkeypatch.setattr(in_full, "run", run)
    work.heal()
    trials = work.search.trials
    failed, healed = trials.of((2,), 400), trials.of((1,), 400)
    assert failed is not None
    assert healed is not None
    assert failed.refused == "it diverged"
    assert (failed.seconds, healed.seconds, trials.seconds) == (10, 10, 20)
    again = begun(tmp_path)
    assert again.search.trials.of((2,), 400) is None, "it is given up where it was, and not before"
    again.heal()
    assert [(t.genes, t.steps, t.refused) for t in again.search.trials.seen] == [
        (t.genes, t.steps, t.refused) for t in trials.seen
    ]
    assert runs == [("made-1-400", True)]


def test_where_nothing_can_be_made_the_last_reason_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **_options: Any) -> Any:
        raise RuntimeError("of no use")

    monkeypatch.setattr(in_full, "run", run)
    work = begun(tmp_path)
    work.heal()
    with pytest.raises(ValueError, match=r"cannot be made in full: .*of no use; what was tried is kept"):
        work.best()
    assert work._failed == in_full.MOST_FAILED


def test_of_several_processes_none_waits_for_one_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **_options: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(in_full, "run", run)
    monkeypatch.setattr(in_full, "alone", lambda: False)
    work = begun(tmp_path)
    with pytest.raises(ValueError, match=r"cannot be made in full: .*out of memory; what was tried is kept"):
        work.heal()
    assert Trials(tmp_path / "trials.jsonl").given_up((2,), 400) is not None, "where it was the first"


def test_seconds_of_a_call_that_was_stopped_count(
    tmp_path: Path, runs: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(in_full, "run", lambda *_, **_options: (_ for _ in ()).throw(Stopped(15)))
        with pytest.raises(Stopped):
            begun(tmp_path).heal()
    (clock,) = tmp_path.glob("*.seconds")
    clock.write_text("40.0")
    work = begun(tmp_path)
    work.heal()
    assert runs == [("made-2-400", True)]
    healed = work.search.trials.of((2,), 400)
    assert healed is not None
    assert healed.seconds == 40


def test_what_was_healed_on_stays_the_recipe_it_was_where_its_beginning_is_given_up(tmp_path: Path) -> None:
    search = begun(tmp_path).search
    for steps in (400, 900):
        search.trials.add(Trial((2,), steps, 3.0, 0.01, smaller=1.0))
    search.give_up((2,), 400, "of no use")
    assert search.parts((2,), 900) == (400, 500)


def test_what_was_healed_in_full_is_rounded_in_addition_and_not_healed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Rounded(KnownLab):
        def trial(self, genes: tuple[int, ...], steps: int, places: Any, turn: Any) -> Trial:
            return replace(super().trial(genes, steps, places, turn), speed=1.0 + genes[0] + 2 * genes[1])

    class Healed(OneByOne):
        def in_full(self, number: int = 0) -> tuple[tuple[int, ...], int]:
            return (2, 0), 400

    places: list[tuple[str, str | None]] = []

    def run(_model: str, _recipe: Any, place: Path, *_: Any, begun: Path | None, **_options: Any) -> Any:
        places.append((place.name, begun and begun.name))
        steps_of(place).mkdir(parents=True)
        return "report", [], []

    monkeypatch.setattr(in_full, "run", run)
    space = Space((*SPACE.slots, (Int8(),)), lambda _: True)
    search = Healed(
        space, Rounded(), Plan(Bound(lose=0.1), 100.0, True), Trials(tmp_path / "trials.jsonl"),  # type: ignore[arg-type]
        clock=lambda: 0.0,
    )  # fmt: skip
    search._try([(0, 1), (2, 0)], 0, lambda: False)
    work = InFull(search, "MODEL", Job(), {}, 0, tmp_path, {}, lambda *_: None)
    work.heal()
    assert places == [("made-2-0-400", None), ("made-2-1-400", "made-2-0-400")]
    best = search.best()
    assert (best.genes, best.steps) == ((2, 1), 400)


@pytest.mark.parametrize("lose", [None, 0.1, 0.001])
def test_rows_of_a_search_stand_for_the_same_recipes_whatever_the_bound(tmp_path: Path, lose: float | None) -> None:
    trials = Trials(tmp_path / "trials.jsonl")
    trials.add(Trial((0, 1), 0, 1.5, 0.0015, smaller=3.0))
    space = Space((*SPACE.slots, (Int8(),)), lambda _: True)
    rounding = Rounding(space, trials, Bound(lose=lose, faster=3.0 if lose is None else None))
    assert rounding.before((2, 1)) == (2, 0)
