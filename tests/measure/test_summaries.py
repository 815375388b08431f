"""ROUGE against its formula in loops, its intervals, and the sentences that a lead takes."""

from collections import Counter

import numpy as np
import pytest

from greenformers.measure.summaries import LEADS, METRICS, differences, interval, lead, means, rouge, sentences

# No word has more than three letters, so that none has a stem.
TEXTS = [
    "the cat sat on the mat",
    "a dog ran to the cat and sat",
    "on the mat the cat sat",
    "the the the",
    "no one ran",
]


def f1(common: int, written: int, asked: int) -> float:
    return 200 * common / (written + asked) if common else 0.0


def grams(words: list[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def common_subsequence(first: list[str], second: list[str]) -> int:
    if not first or not second:
        return 0
    if first[0] == second[0]:
        return 1 + common_subsequence(first[1:], second[1:])
    return max(common_subsequence(first[1:], second), common_subsequence(first, second[1:]))


def by_hand(hypothesis: str, reference: str) -> dict[str, float]:
    """Lin 2004: the shared n-grams, each as often as both have it; the longest common subsequence."""
    written, expected = hypothesis.split(), reference.split()
    scores = {}
    for name, n in (("rouge_1", 1), ("rouge_2", 2)):
        ours, theirs = grams(written, n), grams(expected, n)
        scores[name] = f1(sum((ours & theirs).values()), sum(ours.values()), sum(theirs.values()))
    return scores | {"rouge_l": f1(common_subsequence(written, expected), len(written), len(expected))}


@pytest.mark.parametrize("hypothesis", TEXTS)
def test_it_is_the_formula(hypothesis: str) -> None:
    scores = rouge([hypothesis] * len(TEXTS), [[text] for text in TEXTS])
    for place, reference in enumerate(TEXTS):
        assert {name: values[place] for name, values in scores.items()} == pytest.approx(by_hand(hypothesis, reference))


def test_case_marks_and_endings_do_not_count() -> None:
    scores = rouge(["Cats, running: TREES!"], [["cat run tree"]])
    assert {name: values[0] for name, values in scores.items()} == pytest.approx(dict.fromkeys(METRICS, 100))
    assert means(rouge(["", "the cat"], [["the cat"], ["the cat"]])) == pytest.approx(dict.fromkeys(METRICS, 50))


def test_of_several_references_that_of_the_best_unigrams_counts() -> None:
    # The second shares a bigram, and fewer words.
    written, references = "a b c d", ["d c b a", "a b x y"]
    scores = rouge([written, written], [references, references[::-1]])
    assert scores["rouge_1"] == [100, 100]
    assert scores["rouge_2"] == [0, 0]
    assert by_hand(written, references[1])["rouge_2"] > 0


@pytest.mark.parametrize(("hypotheses", "references"), [([], []), (["a"], []), (["a"], [["a"], ["b"]])])
def test_texts_without_references_are_refused(hypotheses: list[str], references: list[list[str]]) -> None:
    message = f"as many summaries as documents with references, got {len(hypotheses)} and {len(references)}$"
    with pytest.raises(ValueError, match=message):
        rouge(hypotheses, references)


def test_a_document_without_a_reference_is_named() -> None:
    with pytest.raises(ValueError, match=r"^document 1 must have a reference, got none$"):
        rouge(["a", "b"], [["a"], []])


def test_an_interval_is_that_of_a_mean() -> None:
    values = np.random.default_rng(3).normal(30, 7, 401)
    low, high = interval(values.tolist())
    half = 1.96 * values.std() / len(values) ** 0.5
    assert low == pytest.approx(values.mean() - half, abs=0.1)
    assert high == pytest.approx(values.mean() + half, abs=0.1)
    assert interval(values.tolist()) == [low, high]
    assert interval(values.tolist(), seed=1) != [low, high]
    with pytest.raises(ValueError, match=r"^values and draws must be at least 1, got 0 and 2000$"):
        interval([])
    with pytest.raises(ValueError, match=r"^values and draws must be at least 1, got 1 and 0$"):
        interval([1.0], draws=0)


def test_differences_are_paired() -> None:
    theirs = {"rouge_1": [10.0, 50.0, 90.0], "rouge_2": [3.0, 4.0, 5.0]}
    ours = {name: [value + 2 for value in values] for name, values in theirs.items()}
    assert differences(ours, theirs) == {"rouge_1": [2.0, 2.0], "rouge_2": [2.0, 2.0]}
    with pytest.raises(ValueError, match=r"^both systems must have scores of the same documents, got 2 and 3$"):
        differences({"rouge_1": [1.0, 2.0]}, theirs)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Trees grow. They do! Do they? Yes.", ["Trees grow.", "They do!", "Do they?", "Yes."]),
        ("Trees grow . They do .", ["Trees grow .", "They do ."]),
        ("By S. King et al. In 3.5 m, i.e. here.", ["By S. King et al. In 3.5 m, i.e. here."]),
        ("See Fig. 3 (b). (It is here.) \"So.\" 'Yes.'", ["See Fig. 3 (b).", "(It is here.)", '"So."', "'Yes.'"]),
        ("It cost 5 . 3 fell", ["It cost 5 .", "3 fell"]),
        ("lower. case stays", ["lower. case stays"]),
        ("a line\nand another\n\n", ["a line", "and another"]),
        ("Really?! Yes...", ["Really?!", "Yes..."]),
        ("", []),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


def test_a_lead_is_the_first_sentences() -> None:
    text = "One is first. Two is next. Three.\nFour ends it."
    assert lead(text, 1) == "One is first."
    assert lead(text, LEADS["lead-3"]) == "One is first. Two is next. Three."
    assert lead(text, 9) == "One is first. Two is next. Three. Four ends it."
    with pytest.raises(ValueError, match=r"^count must be at least 1, got 0$"):
        lead(text, 0)
