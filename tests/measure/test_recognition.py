"""Error rates against cases worked by hand and an edit distance of the textbook; the intervals of the bootstrap."""

import random
import sys

import pytest
import torch

from greenformers.measure.recognition import bootstrap, bootstrap_difference, edits, plain_words, scores

pytest.importorskip("jiwer", reason="the speech extra is not installed")


def distance(a, b):
    """Levenshtein's distance, Wagner and Fischer 1974."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def strings(count, seed):
    """Pairs of short strings over three letters and the space; a reference begins with a letter."""
    draw = random.Random(seed)
    text = lambda least: "".join(draw.choice("abc ") for _ in range(draw.randint(least, 13))).strip()  # noqa: E731
    return [text(0) for _ in range(count)], [draw.choice("abc") + text(0) for _ in range(count)]


def test_by_hand():
    # kitten -> sitting: 2 substitutions and an insertion over 7; "one too" for "one two": 1 over 7; 1 of 3 words right.
    rates = scores(["kitten", "one too"], ["sitting", "one two"])
    assert rates == {"cer": pytest.approx(100 * 4 / 14), "wer": pytest.approx(100 * 2 / 3), "mean_length": 6.5}
    assert scores(["a b"], ["a b"]) == {"cer": 0.0, "wer": 0.0, "mean_length": 3.0}


def test_the_corpus_is_scored_as_a_whole():
    # 1 error of 1 character and 0 of 9: 10 % of all, though the mean of the rates would be 50 %.
    assert scores(["b", "abcabcabc"], ["a", "abcabcabc"])["cer"] == pytest.approx(10)


def test_spaces_are_characters_inside_only():
    assert scores(["ab"], ["a b"])["cer"] == pytest.approx(100 / 3)
    assert scores([" a b "], ["a b"]) == {"cer": 0.0, "wer": 0.0, "mean_length": 3.0}


def test_chinese():
    assert scores(["我们号"], ["我们好吗"]) == {"cer": 50.0, "wer": 100.0, "mean_length": 3.0}


def test_too_much_is_above_100():
    assert scores(["aaaa"], ["b"])["cer"] == 400


def test_empty_hypotheses():
    assert scores(["", " "], ["abc", "d e"]) == {"cer": 100.0, "wer": 100.0, "mean_length": 0.0}
    counts, lengths = edits(["", "x"], ["abc", "x"])
    assert (counts.tolist(), lengths.tolist()) == ([3, 0], [3, 1])


def test_against_the_textbook():
    hypotheses, references = strings(401, 5)
    counts, lengths = edits(hypotheses, references)
    assert counts.tolist() == [distance(a, b) for a, b in zip(hypotheses, references, strict=True)]
    assert lengths.tolist() == [len(reference) for reference in references]
    rates = scores(hypotheses, references)
    assert rates["cer"] == pytest.approx(100 * (counts.sum() / lengths.sum()).item(), rel=1e-6)
    words = [distance(a.split(), b.split()) for a, b in zip(hypotheses, references, strict=True)]
    assert rates["wer"] == pytest.approx(100 * sum(words) / sum(len(b.split()) for b in references))
    assert rates["mean_length"] == pytest.approx(sum(map(len, hypotheses)) / 401)


@pytest.mark.parametrize("score", [scores, edits])
def test_wrong_texts(score):
    with pytest.raises(ValueError, match=r"^there must be as many references as hypotheses, got 1 and 2$"):
        score(["a", "b"], ["a"])
    with pytest.raises(ValueError, match=r"^there must be as many references as hypotheses, got 0 and 0$"):
        score([], [])
    with pytest.raises(ValueError, match=r"^reference 1 must have at least 1 character, it is empty$"):
        score(["a", "b"], ["a", " "])


def test_without_jiwer(monkeypatch):
    monkeypatch.setitem(sys.modules, "jiwer", None)
    with pytest.raises(ImportError, match=r"^the error rate of transcripts needs jiwer: .* its extra 'speech'"):
        scores(["a"], ["a"])


def simulated(count, rate, seed):
    """Edits of utterances of 5 to 20 characters, each wrong at the same rate."""
    source = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, 21, (count,), generator=source)
    return torch.binomial(lengths.double(), torch.full((count,), rate, dtype=torch.float64), generator=source), lengths


def test_the_interval_is_that_of_theory():
    counts, lengths = simulated(701, 0.2, 3)
    low, high = bootstrap(counts, lengths)
    # A character is wrong by itself here, so the standard error of the rate is that of a binomial.
    rate = (counts.sum() / lengths.sum()).item()
    error = 100 * (rate * (1 - rate) / lengths.sum().item()) ** 0.5
    assert low < 100 * rate < high
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert bootstrap(counts, lengths) == (low, high)
    assert bootstrap(counts, lengths, seed=1) != (low, high)


def test_longer_utterances_weigh_more():
    # 90 of 90 characters wrong, or 0 of 10: a draw of both has 90 %, not 50 %.
    low, high = bootstrap(torch.tensor([90, 0]), torch.tensor([90, 10]), draws=401)
    assert (low, high) == (0, 100)
    counts, lengths = torch.tensor([9, 0] * 50), torch.tensor([9, 1] * 50)
    low, high = bootstrap(counts, lengths)
    assert 80 < low < 90 < high < 97


def test_groups_are_drawn_whole():
    counts, lengths = torch.tensor([1, 1, 1, 1, 0, 0, 0, 0]).repeat(8), torch.full((64,), 2)
    speakers = [name for _ in range(8) for name in "aaaabbbb"]
    # Two speakers, one with half of the characters wrong and one with none: 0, 25 or 50 %.
    assert bootstrap(counts, lengths, speakers) == (0, 50)
    low, high = bootstrap(counts, lengths)
    assert 15 < low < 25 < high < 35
    # Each in a group of its own is the same as no groups.
    assert bootstrap(counts, lengths, [str(place) for place in range(64)]) == (low, high)


def test_groups_of_different_size():
    # Group a: 6 of 10 wrong in three utterances; group b: 0 of 30.
    counts, lengths = torch.tensor([1, 0, 2, 3]), torch.tensor([2, 30, 3, 5])
    assert bootstrap(counts, lengths, ["a", "b", "a", "a"]) == (0, 60)


def test_the_difference_is_paired():
    counts, lengths = simulated(307, 0.3, 7)
    better = (counts - 1).clamp(min=0)
    low, high = bootstrap_difference(counts, better, lengths)
    difference = 100 * ((counts - better).sum() / lengths.sum()).item()
    assert 0 < low < difference < high
    # Utterances that are hard are so for both: the interval is far narrower than that of either.
    alone = bootstrap(counts, lengths)
    assert high - low < (alone[1] - alone[0]) / 2
    assert bootstrap_difference(better, counts, lengths) == (pytest.approx(-high), pytest.approx(-low))
    assert bootstrap_difference(counts, counts, lengths) == (0, 0)
    assert bootstrap_difference(counts, better, lengths, ["a", "b", "c"] * 102 + ["a"], draws=11, seed=3)[0] > 0


def test_wrong_tensors():
    two = torch.tensor([1, 1])
    for arguments, expected in [
        ((two, torch.tensor([1])), r"^edits and lengths must be \(n,\), got \(2,\) and \(1,\)$"),
        ((two[None], two[None]), r"^edits and lengths must be \(n,\), got \(1, 2\) and \(1, 2\)$"),
        ((two, torch.tensor([1, 0])), r"^lengths must be at least 1, got 0$"),
        ((two, two, ["a"]), r"^there must be a group for each of 2 utterances, got 1$"),
        ((two, two, ["a", None]), r"^each utterance must have a group, utterance 1 has none$"),
        ((two, two, ["a", "a"]), r"^there must be at least 2 groups, got 1$"),
        ((two[:1], two[:1]), r"^there must be at least 2 utterances, got 1$"),
        ((two[:0], two[:0]), r"^there must be at least 2 utterances, got 0$"),
    ]:
        with pytest.raises(ValueError, match=expected):
            bootstrap(*arguments)
    with pytest.raises(ValueError, match=r"^draws must be at least 1, got 0$"):
        bootstrap(two, two, draws=0)
    with pytest.raises(ValueError, match=r"^edits must be of the same utterances, got \(2,\) and \(1,\)$"):
        bootstrap_difference(two, two[:1], two)


def test_marks_of_letters_stay() -> None:
    assert plain_words("हिन्दी, में!") == "हिन्दी में"
    assert plain_words("e\u0301te\u0301.") == "e\u0301te\u0301"
    assert plain_words("की") != plain_words("का")
    assert plain_words("Don't -- stop_it.") == "don't stop_it"
    assert plain_words("?!") == "?!"
