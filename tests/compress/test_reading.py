"""Texts to learn from, apart from those that judge."""

import pytest

from greenformers.compress.parts import parts_of
from greenformers.compress.reading import apart
from greenformers.data._texts import Texts


def test_no_text_that_judges_is_learned_from() -> None:
    training = Texts("corpus.txt", [("a",), ("b",), ("c",), ("d",)])
    pairs = Texts("pairs.tsv", [("a", "e"), ("f", "c")], [1.0, 2.0])
    parts, gone = apart({"training": training, "judging": pairs}, Texts("others", [("d",)]))
    assert parts["training"] == Texts("corpus.txt", [("b",)])
    assert parts["judging"] is pairs
    assert gone == 3
    both = Texts("pairs.txt", [("b", "g"), ("g", "h")])
    assert apart({"training": both}, Texts("others", [("b",)]))[0]["training"] == both.at([1])
    with pytest.raises(ValueError, match=r"every text of corpus.txt to learn from is one to judge by"):
        apart({"training": training}, training)


def test_without_training_nothing_changes() -> None:
    parts = {"judging": Texts("pairs.tsv", [("a", "b")])}
    assert apart(parts) == (parts, 0)


@pytest.mark.parametrize(
    ("count", "purposes", "limit", "sizes"),
    [
        (3000, ("calibration", "training", "judging"), 1000, {"judging": 600, "calibration": 600, "training": 1800}),
        (90_000, ("calibration", "training", "judging"), 99, {"judging": 2000, "calibration": 99, "training": 87_901}),
        (3000, ("calibration", "judging"), 128, {"judging": 2000, "calibration": 128}),
        (500, ("calibration", "judging"), 1000, {"judging": 250, "calibration": 250}),
        (1500, ("calibration", "judging"), 1000, {"judging": 750, "calibration": 750}),
        (500, ("training", "judging"), 1000, {"judging": 100, "training": 400}),
        (5000, ("judging",), 1000, {"judging": 2000}),
        (5000, ("training",), 1000, {"training": 5000}),
    ],
)  # fmt: skip
def test_what_nothing_is_learned_from_judges(
    count: int, purposes: tuple[str, ...], limit: int, sizes: dict[str, int]
) -> None:
    """A search of a file with pairs of its own had 299 to tell recipes apart by, of 3,000."""
    parts = parts_of(range(count), purposes, 0, limit)
    assert {name: len(part) for name, part in parts.items()} == sizes
    assert len({x for part in parts.values() for x in part}) == sum(sizes.values())
