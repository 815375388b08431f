"""BLEU and chrF: sacreBLEU's own numbers."""

import math

import pytest
from sacrebleu import corpus_bleu, corpus_chrf

from greenformers.measure.translation import bleu_signature, translation_scores

REFERENCES = ["ein hund rennt durch den tiefen schnee", "zwei kinder spielen am strand"]


def test_the_same_texts_score_100() -> None:
    assert translation_scores(REFERENCES, REFERENCES) == {"bleu": pytest.approx(100), "chrf": pytest.approx(100)}


def test_they_are_sacrebleus_scores() -> None:
    hypotheses = ["ein hund rennt durch den schnee", "Zwei Kinder spielen im Sand"]
    scores = translation_scores(hypotheses, REFERENCES)
    assert scores == {
        "bleu": pytest.approx(corpus_bleu(hypotheses, [REFERENCES]).score),
        "chrf": pytest.approx(corpus_chrf(hypotheses, [REFERENCES]).score),
    }
    assert 0 < scores["bleu"] < scores["chrf"] < 100


def test_bleu_by_hand() -> None:
    # n-grams of "a b c d e" in "a b c d x": 4/5, 3/4, 2/3, 1/2; as long as the reference, so no penalty.
    bleu = translation_scores(["a b c d e"], ["a b c d x"])["bleu"]
    assert bleu == pytest.approx(100 * math.prod((4 / 5, 3 / 4, 2 / 3, 1 / 2)) ** 0.25)
    # Cut to four of five words: all n-grams are right, e^(1 - 5/4) is the penalty.
    assert translation_scores(["a b c d"], ["a b c d x"])["bleu"] == pytest.approx(100 * math.exp(-0.25))


def test_case_and_order_matter() -> None:
    assert translation_scores([text.upper() for text in REFERENCES], REFERENCES)["bleu"] == 0
    assert translation_scores(REFERENCES[::-1], REFERENCES)["bleu"] < 10


@pytest.mark.parametrize("count", [(0, 0), (1, 0), (0, 1), (2, 1)])
def test_texts_without_references_are_refused(count: tuple[int, int]) -> None:
    hypotheses, references = (["text"] * n for n in count)
    with pytest.raises(ValueError, match=f"as many references as hypotheses, got {count[1]} and {count[0]}$"):
        translation_scores(hypotheses, references)


def test_the_signature_says_how_it_was_counted() -> None:
    parts = bleu_signature().split("|")
    assert {"nrefs:1", "case:mixed", "tok:13a", "smooth:exp"} <= set(parts)
    assert parts[-1].startswith("version:")
