"""Entities of tagged sentences: those of the definition read word by word, and scores counted by hand."""

import itertools

import pytest

from greenformers.measure.entities import entities, entity_counts, entity_scores, scores_of


def by_definition(tags: tuple[str, ...]) -> set[tuple[str, int, int]]:
    """Every stretch of words that is an entity: it begins as one, goes on as one, and is not followed by more of it."""

    def begins(place: int) -> bool:
        mark, _, kind = tags[place].partition("-")
        before = tags[place - 1].partition("-")[2] if place else ""
        return mark == "B" or (mark == "I" and before != kind)

    spans = set()
    for start, end in itertools.combinations(range(len(tags) + 1), 2):
        kind = tags[start].partition("-")[2]
        inside = all(tags[place] == f"I-{kind}" for place in range(start + 1, end))
        goes_on = end < len(tags) and tags[end] == f"I-{kind}"
        if kind and begins(start) and inside and not goes_on:
            spans.add((kind, start, end))
    return spans


@pytest.mark.parametrize("length", range(5))
def test_entities_are_those_of_the_definition(length: int) -> None:
    for tags in itertools.product(["O", "B-a", "I-a", "B-b", "I-b"], repeat=length):
        assert entities(tags) == by_definition(tags), tags


def test_kinds_may_have_dashes() -> None:
    assert entities(["B-creative-work", "I-creative-work", "O"]) == {("creative-work", 0, 2)}


def test_scores_are_counted() -> None:
    right = [["B-a", "I-a", "O", "B-b"], ["O", "B-a"], ["O"]]
    predicted = [["B-a", "I-a", "O", "B-a"], ["B-b", "B-a"], ["O"]]
    # Four are predicted, three are there, two are the same.
    assert entity_scores(predicted, right) == {
        "precision": pytest.approx(50), "recall": pytest.approx(200 / 3), "f1": pytest.approx(400 / 7)
    }  # fmt: skip
    # A boundary that is wrong by a word is all wrong.
    assert entity_scores([["B-a", "O"]], [["B-a", "I-a"]]) == {"f1": 0, "precision": 0, "recall": 0}
    assert entity_scores(right, right) == {"f1": 100, "precision": 100, "recall": 100}
    assert entity_scores([["O"]], [["O"]]) == {"f1": 0, "precision": 0, "recall": 0}


def test_counts_of_sentences_add_up_to_the_scores() -> None:
    right = [["B-a", "I-a", "O", "B-b"], ["O", "B-a"], ["O"]]
    predicted = [["B-a", "I-a", "O", "B-a"], ["B-b", "B-a"], ["O"]]
    counts = entity_counts(predicted, right)
    assert counts == [(1, 2, 2), (1, 2, 1), (0, 0, 0)]
    assert scores_of(counts) == entity_scores(predicted, right)
    assert scores_of(counts[1:2]) == {"f1": pytest.approx(200 / 3), "precision": 50, "recall": 100}


def test_refusals() -> None:
    for tag in ("X-a", "B", "I-", "O-a", ""):
        with pytest.raises(ValueError, match=rf"^tags must be O, or B- or I- and a kind, got '{tag}'$"):
            entities([tag])
    with pytest.raises(ValueError, match=r"^sentence 1 must have 2 predicted tags, got 1$"):
        entity_scores([["O"], ["O"]], [["O"], ["O", "O"]])
