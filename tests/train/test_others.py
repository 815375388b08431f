"""Processes that work on things of their own: who has the machine for himself, and what they tell each other."""

import os
import random
import time

import pytest
from side_by_side import each

from greenformers.train.others import Others, each_alone
from greenformers.train.processes import LAUNCHED, alone


def test_in_a_turn_nobody_else_works() -> None:
    works, timed = [True] * 3, list[int]()

    def work(others: Others) -> list[int]:
        draw, given = random.Random(others.rank), []

        def alone_on_it() -> int:
            assert not any(works)
            timed.append(others.rank)
            time.sleep(0.002)
            assert not any(works)
            return len(timed)

        for _ in range(2 * others.rank):  # the first asks for none
            time.sleep(draw.uniform(0, 0.005))
            works[others.rank] = False
            given.append(others.turn(alone_on_it))
            works[others.rank] = True
        works[others.rank] = False
        others.ended()
        return given

    given = each(work, 3)
    assert sorted(number for of in given for number in of) == [1, 2, 3, 4, 5, 6]
    assert timed == [1, 2, 1, 2, 2, 2], "in the order of their numbers, as long as they ask"


def test_what_fails_in_a_turn_fails_there_alone() -> None:
    def work(others: Others) -> object:
        def fails() -> int:
            if others.rank == 0:
                raise RuntimeError("out of memory")
            return 7

        try:
            value: object = others.turn(fails)
        except RuntimeError as error:
            value = str(error)
        others.ended()
        return others.gathered(value)

    assert each(work, 2) == [["out of memory", 7]] * 2


def test_each_tells_all() -> None:
    told = each(lambda others: [others.gathered([others.rank, None]), others.gathered("x")], 3)
    assert told == [[[[0, None], [1, None], [2, None]], ["x"] * 3]] * 3


def test_one_process_has_every_turn() -> None:
    others = Others()
    assert others.turn(lambda: 5) == 5
    others.ended()
    assert others.gathered(3) == [3]
    with pytest.raises(ZeroDivisionError):
        others.turn(lambda: 1 // 0)


def test_inside_each_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "1")
    with each_alone() as others:
        assert alone()
        assert others.count == 1
        assert "WORLD_SIZE" not in os.environ
    assert os.environ["WORLD_SIZE"] == "1"
