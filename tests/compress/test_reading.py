"""Texts to learn from, apart from those that judge."""

import pytest

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
