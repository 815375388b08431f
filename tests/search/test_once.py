"""Of a file with a text twice the half that judges has none that the search has seen."""

import pytest
from zoo import network

from greenformers.data._texts import Texts
from greenformers.search import advice
from greenformers.search.bound import Bound
from greenformers.search.once import halved_once, once


def test_the_first_of_equal_texts_is_left_and_pairs_count_in_either_order() -> None:
    texts = Texts("t", [("a",), ("b",), ("a",)], [1, 0, 0])
    assert once(texts, "classifier") == Texts("t", [("a",), ("b",)], [1, 0])
    assert once(texts, "causal_lm") == texts
    pairs = Texts("t", [("a", "b"), ("b", "a"), ("a", "c")])
    assert once(pairs, "encoder").segments == [("a", "b"), ("a", "c")]


def test_halves_have_no_text_in_common() -> None:
    seen, judged = halved_once(Texts("t", [(word,) for word in "aabbccddeeffgghh"]), "encoder", 10)
    assert (seen.segments, judged.segments) == ([(word,) for word in "aceg"], [(word,) for word in "bdfh"])
    for words, said in (("aabbccdd", "t has 4 texts that differ"), ("aaa", "t has 3 examples; at least 8")):
        with pytest.raises(ValueError, match=said):
            halved_once(Texts("t", [(word,) for word in words]), "encoder", 10)


def test_advice_is_judged_by_texts_that_its_search_has_not_seen() -> None:
    texts = Texts("t", [(word,) for word in "aabbccdd"])
    with pytest.raises(ValueError, match="t has 4 texts that differ, at least 8 are needed"):
        advice.advise(network("bert", "BertModel"), None, texts, bound=Bound(lose=0.03), about={})
