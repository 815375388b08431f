"""Draws by `limit`, of every kind of text; those of images are in test_data.py."""

from collections import Counter

import pytest

from greenformers.data import Document, Examples, Labelled, Pairs, Summaries, Text
from greenformers.data._draw import drawn


def examples(size, rare=0):
    """Class 1 three times in four, but for `rare` examples of class 2."""
    labels = [2 if i < rare else int(i % 4 > 0) for i in range(size)]
    return Examples([(f"text {i}", f"more {i}") for i in range(size)], labels)


def classes(train, valid, test):
    return Labelled("some", ("a", "b", "c"), train, valid, test)


def test_classes_keep_their_proportions():
    data = drawn(classes(examples(400), examples(80), examples(7)), 40, seed=3)
    assert Counter(data.train.labels) == {1: 30, 0: 10}
    assert Counter(data.valid.labels) == {1: 30, 0: 10}
    assert data.test.texts == examples(7).texts
    places = [int(text[0].split()[1]) for text in data.train.texts]
    assert places == sorted(set(places))
    for (text, more), label, place in zip(data.train.texts, data.train.labels, places, strict=True):
        assert (text, more, label) == (f"text {place}", f"more {place}", int(place % 4 > 0))


def test_a_rare_class_gets_its_example():
    data = drawn(classes(examples(400, rare=1), Examples(), Examples()), 3, seed=1)
    assert sorted(data.train.labels) == [0, 1, 2]
    assert len(data.valid) == 0


def test_a_smaller_draw_is_part_of_a_larger_one():
    whole = classes(examples(101), Examples(), Examples())
    scores = Labelled("some", None, Examples(whole.train.texts, [i / 20 for i in range(101)]), Examples(), Examples())
    for data in (whole, scores):
        small, large, other = (drawn(data, limit, seed).train for limit, seed in ((11, 2), (37, 2), (11, 4)))
        assert len(small) == 11
        assert set(small.texts) < set(large.texts)
        assert small.texts != other.texts
        assert small.texts == drawn(data, 11, 2).train.texts
        pairs = set(zip(data.train.texts, data.train.labels, strict=True))
        assert set(zip(large.texts, large.labels, strict=True)) < pairs


def test_summaries():
    papers = [Document(f"t{i}", f"text {i}", (f"s{i}",)) for i in range(53)]
    data = Summaries("some", papers, papers[:1], [])
    small, large = drawn(data, 7, seed=5), drawn(data, 19, seed=5)
    assert len(small.train) == 7
    assert {*small.train} < {*large.train} < {*papers}
    assert small.train == sorted(small.train, key=lambda paper: int(paper.title[1:]))
    assert (small.name, small.valid, small.test) == ("some", papers[:1], [])


def test_pairs():
    data = Pairs("some", "en", "de", [(f"e{i}", f"d{i}") for i in range(53)], [("x", "y")], [])
    small, large = drawn(data, 7, seed=5), drawn(data, 19, seed=5)
    assert (small.name, small.source, small.target) == ("some", "en", "de")
    assert len(small.train) == 7
    assert set(small.train) < set(large.train) < set(data.train)
    assert small.train == sorted(small.train, key=lambda pair: int(pair[0][1:]))
    assert (small.valid, small.test) == ([("x", "y")], [])
    assert drawn(data, 53, seed=5).train == data.train
    with pytest.raises(ValueError, match=r"^some has no test split in the folder or dataset given$"):
        small.split("test")


def test_running_text_gives_its_first_lines():
    data = drawn(Text("some", "a\n\nb\u2028c\r\nd\n", "e\nf\ng", ""), 3, seed=1)
    assert data.train == "a\n\nb\u2028c\r\n"
    assert data.valid == "e\nf\ng"
    assert data.test == ""
    assert drawn(data, 1, seed=1).valid == "e\n"


def test_no_limit_is_the_data_itself():
    data = Text("some", "a\nb\n", "c", "d")
    assert drawn(data, None, seed=1) is data


@pytest.mark.parametrize(
    ("data", "limit", "expected"),
    [
        (Text("some", "a", "b", "c"), 0, "limit must be at least 1, got 0"),
        (Pairs("some", "en", "de", [("a", "b")], [], []), -1, "limit must be at least 1, got -1"),
        (Labelled("some", None, examples(3), Examples(), Examples()), 0, "limit must be at least 1, got 0"),
        (classes(examples(9), Examples(), Examples()), 2, "limit must be at least 3, the classes of some, got 2"),
    ],
)
def test_limit_out_of_range(data, limit, expected):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        drawn(data, limit, seed=1)
    assert str(caught.value) == expected
