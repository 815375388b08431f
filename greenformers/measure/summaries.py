"""Quality of summaries. Lin 2004, W04-1013 (ROUGE); Cachola 2020, arXiv:2004.15011 (several references).

Of n-grams that a summary and a reference share, counted as often as both have them, precision is the share of the
summary's and recall that of the reference's; ROUGE-n is F1, 2 P R / (P + R). ROUGE-L takes the longest common
subsequence of words in place of n-grams. Words are counted by rouge-score: lower case, letters and digits alone, stems
by Porter's rules for words of more than three letters.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from greenformers import _extras

METRICS = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}
"""Metrics of records, and what rouge-score calls them."""

LEADS = {"lead-1": 1, "lead-3": 3}
"""Baselines that every summary is compared with, and the number of sentences each takes from the beginning."""

DRAWS = 2_000

_END = re.compile(r"""[.!?]+["'”’)\]]*\s+(?=["'“‘(\[]*[A-Z0-9])""")
_SHORT = {"al", "cf", "dr", "eq", "eqs", "etc", "fig", "figs", "i.e", "e.g", "mr", "mrs", "ms", "no", "prof", "resp",
          "sec", "st", "vs", "w.r.t"}  # fmt: skip
"""Words that a full stop shortens, without it and in lower case."""


def rouge(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, list[float]]:
    """ROUGE-1, 2 and L of each document, F1 from 0 to 100. A mean over documents is the score of a system.

    With several references all three scores are those of one of them, the one with the highest ROUGE-1, as in the
    evaluation of SciTLDR.

    Args:
        hypotheses: Summaries to be scored, by document.
        references: References of each document, at least one, in the same order.

    Raises:
        ValueError: Raised where hypotheses and documents differ in number, or there are none, or a document has no
            reference.
        MissingExtraError: Raised where rouge-score is not installed.
    """
    if len(hypotheses) != len(references) or not references:
        raise ValueError(
            f"there must be as many summaries as documents with references, got {len(hypotheses)} and {len(references)}"
        )
    scorer = needed().RougeScorer([*METRICS.values()], use_stemmer=True)
    scores: dict[str, list[float]] = {name: [] for name in METRICS}
    for hypothesis, own in zip(hypotheses, references, strict=True):
        if not own:
            raise ValueError(f"document {len(scores['rouge_1'])} must have a reference, got none")
        counted = [scorer.score(reference, hypothesis) for reference in own]
        best = max(counted, key=lambda score: score["rouge1"].fmeasure)
        for name, theirs in METRICS.items():
            scores[name].append(100 * float(best[theirs].fmeasure))
    return scores


def means(scores: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The mean over documents of each score."""
    return {name: float(np.mean(values)) for name, values in scores.items()}


def interval(values: Sequence[float], *, draws: int = DRAWS, seed: int = 0) -> list[float]:
    """95 % interval of a mean over documents, by drawing documents with replacement. Efron 1979; Koehn 2004, W04-3250.

    Args:
        values: Score of each document; or differences of the scores of two systems, for a paired interval.
        draws: Number of collections of documents that are drawn.
        seed: Seed of the draws.

    Returns:
        The low and the high end of the interval.

    Raises:
        ValueError: Raised where there are no values, or no draws.
    """
    if not len(values) or draws < 1:
        raise ValueError(f"values and draws must be at least 1, got {len(values)} and {draws}")
    drawn, source = np.asarray(values, dtype=np.float64), np.random.default_rng(seed)
    averages = [drawn[source.integers(0, len(drawn), len(drawn))].mean() for _ in range(draws)]
    low, high = np.quantile(averages, [0.025, 0.975])
    return [float(low), float(high)]


def differences(
    ours: Mapping[str, Sequence[float]], theirs: Mapping[str, Sequence[float]], *, draws: int = DRAWS, seed: int = 0
) -> dict[str, list[float]]:
    """95 % interval of each score of ours less that of theirs, paired by document, see `interval`.

    Args:
        ours: Scores of our system, as `rouge` gives them.
        theirs: Scores of the other system, of the same documents in the same order.
        draws: Number of collections of documents that are drawn.
        seed: Seed of the draws.

    Raises:
        ValueError: Raised where the numbers of documents differ.
    """
    intervals = {}
    for name, values in ours.items():
        if len(values) != len(theirs[name]):
            raise ValueError(
                f"both systems must have scores of the same documents, got {len(values)} and {len(theirs[name])}"
            )
        paired = [a - b for a, b in zip(values, theirs[name], strict=True)]
        intervals[name] = interval(paired, draws=draws, seed=seed)
    return intervals


def sentences(text: str) -> list[str]:
    """The sentences of an English text, by rule; a line end also ends a sentence.

    A sentence ends at a full stop, question or exclamation mark before white space and a capital letter or a digit,
    unless the full stop is that of an initial ("S. King") or of a common abbreviation ("et al.").
    """
    parts = []
    for line in text.splitlines():
        start = 0
        for end in _END.finditer(line):
            word = line[start : end.start()].rpartition(" ")[2].lstrip("\"'“‘([")
            if end.group().startswith(".") and (word.lower() in _SHORT or re.fullmatch("[A-Z]", word)):
                continue
            parts.append(line[start : end.end()].strip())
            start = end.end()
        parts.append(line[start:].strip())
    return [part for part in parts if part]


def lead(text: str, count: int) -> str:
    """The first `count` sentences of a text, the baseline of which many systems fall short. See 2016, arXiv:1608.02927.

    Raises:
        ValueError: Raised where `count` is below 1.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    return " ".join(sentences(text)[:count])


def needed() -> Any:
    """The module of rouge-score that counts n-grams.

    Raises:
        MissingExtraError: Raised where it is not installed.
    """
    return _extras.needed("the score of summaries", "summaries", "rouge-score", "rouge_score.rouge_scorer")
