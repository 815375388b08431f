"""Pairs of passages: where they come from, what is balanced, and that no article is in two splits."""

from collections import Counter
from pathlib import Path

import pytest

from greenformers.data import Text, load, same_article, wikitext2

SHARED = Path(__file__).parents[2].parent / "shared/data/wikitext2"


def text(split, count, words=200):
    """Articles of words that say where they are from, under headings as WikiText-2 has them."""
    articles = []
    for number in range(count):
        body = " ".join(f"{split}{number}w{word:03}" for word in range(words))
        halves = body[: len(body) // 2], body[len(body) // 2 :]
        articles.append(f" \n = Title {number} of {split} = \n \n {halves[0]}\n = = Part = = \n \n {halves[1]}\n")
    return "".join(articles)


@pytest.fixture
def wiki():
    return Text("wikitext2", text("a", 7), text("b", 3), text("c", 5))


def article_of(passage):
    """The article that a passage is from, by its words, of which those at its ends may be cut."""
    words = [word.split("w")[0] for word in passage.split()[1:-1] if "w" in word]
    (name,) = set(words)
    return name


def test_articles(wiki):
    parts = same_article.articles(wiki.train)
    assert len(parts) == 7
    assert parts[0].startswith(b" a0w000 a0w001")
    assert b"= = Part = = \n" in parts[0]  # headings within an article stay
    assert b"Title" not in b"".join(parts)
    # As the hub has them, without the spaces.
    assert same_article.articles(wiki.train.replace(" \n = T", "\n = T").replace("= \n \n", "= \n\n")) == [
        part.replace(b"= \n \n", b"= \n\n") for part in parts
    ]


def test_pairs(wiki):
    data = same_article.generate(wiki, length=300, train=101, valid=20, test=30)
    assert data.classes == ("different", "same")
    places = {"same": Counter(), "different": Counter()}
    for letter, split, size in (("a", data.train, 101), ("b", data.valid, 20), ("c", data.test, 30)):
        assert len(split) == size
        assert sum(split.labels) == size // 2
        for (first, second), label in zip(split.texts, split.labels, strict=True):
            assert len(first.encode()) == len(second.encode()) == 300
            assert article_of(first)[0] == article_of(second)[0] == letter
            assert (article_of(first) == article_of(second)) == bool(label)
            whole = same_article.articles({"a": wiki.train, "b": wiki.valid, "c": wiki.test}[letter])
            begins = [article.find(passage.encode()) for passage in (first, second) for article in whole]
            begins = [begin for begin in begins if begin >= 0]
            if label:
                assert abs(begins[0] - begins[1]) >= 300  # they never overlap
            places[data.classes[label]][begins[0] < begins[1]] += 1
    # Either passage may be the earlier one, whatever the label.
    assert all(0.25 < counts[True] / counts.total() < 0.75 for counts in places.values())


def test_the_seed_alone_decides(wiki):
    first, again, other = (same_article.generate(wiki, length=50, train=9, valid=2, test=2, seed=s) for s in (5, 5, 6))
    assert (first.train.texts, first.test.labels) == (again.train.texts, again.test.labels)
    assert first.train.texts != other.train.texts


def test_characters_that_a_cut_divides_are_lost():
    wiki = Text("wikitext2", "".join(f" \n = {n} = \n \n {'数' * 40} \n" for n in range(3)), "", "")
    data = same_article.generate(wiki, length=31, train=40, valid=0, test=0)
    assert {len(passage) for pair in data.train.texts for passage in pair} <= {9, 10, 11}
    assert {*"".join(passage for pair in data.train.texts for passage in pair)} <= {"数", " ", "\n"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length must be at least 1, got 0"),
        ({"train": -1}, "train must be at least 0, got -1"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"length": 4_000}, "train must have 2 articles of at least 8000 bytes, found 0"),
    ],
)
def test_arguments_out_of_range(wiki, options, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        same_article.generate(wiki, **options)
    assert str(caught.value) == message


def test_wikitext2():
    if not SHARED.is_dir():
        pytest.skip("shared/data/wikitext2 is not beside the repository on this machine")
    wiki = wikitext2.load(SHARED)
    parts = [same_article.articles(split) for split in (wiki.train, wiki.valid, wiki.test)]
    assert [len(part) for part in parts] == [600, 60, 60]  # the published numbers
    assert len({article for part in parts for article in part}) == 720  # none is in two splits
    data = load("same_article", SHARED, limit=100)
    assert [Counter(split.labels) for split in (data.train, data.valid, data.test)] == [{0: 50, 1: 50}] * 3
    assert all(3_990 <= len(passage.encode()) <= 4_000 for pair in data.train.texts for passage in pair)
