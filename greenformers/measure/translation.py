"""Quality of translations. Papineni 2002 (BLEU); Popovic 2015 (chrF); Post 2018, arXiv:1804.08771 (sacreBLEU)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from greenformers import _extras


def translation_scores(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """BLEU and chrF of a corpus, 0 to 100: untokenised, with case, one reference each, sacreBLEU's defaults.

    Raises:
        ValueError: the numbers of hypotheses and references differ, or there is none.
    """
    if len(hypotheses) != len(references) or not references:
        raise ValueError(f"there must be as many references as hypotheses, got {len(references)} and {len(hypotheses)}")
    metrics = (needed().BLEU(), needed().CHRF())
    bleu, chrf = (metric.corpus_score(list(hypotheses), [list(references)]).score for metric in metrics)
    return {"bleu": bleu, "chrf": chrf}


def bleu_difference(
    ours: Sequence[str], theirs: Sequence[str], references: Sequence[str], *, draws: int = 2000, seed: int = 0
) -> list[float]:
    """95 % interval of BLEU of ours less that of theirs, by drawing sentences with replacement. Koehn 2004, W04-3250.

    Raises:
        ValueError: The numbers of sentences differ, or there is none.
    """
    if not len(ours) == len(theirs) == len(references) or not references:
        raise ValueError(f"there must be as many of each, got {len(ours)}, {len(theirs)} and {len(references)}")
    counted = [_counts(hypotheses, references) for hypotheses in (ours, theirs)]
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(draws):
        at = draw.integers(0, len(references), len(references))
        one, other = (_bleu(counts[at].sum(0)) for counts in counted)
        found.append(one - other)
    low, high = np.quantile(found, [0.025, 0.975])
    return [float(low), float(high)]


def _counts(hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """Of each sentence the n-grams that are right, those there are, and both lengths: corpus BLEU is of their sums."""
    metric = needed().BLEU(effective_order=True)  # counts are the same, and sacreBLEU asks for it
    scores: list[Any] = [metric.sentence_score(one, [other]) for one, other in zip(hypotheses, references, strict=True)]
    return np.array([[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores])


def _bleu(sums: np.ndarray) -> float:
    order = (len(sums) - 2) // 2
    right, there = sums[:order].tolist(), sums[order : 2 * order].tolist()
    return float(needed().BLEU.compute_bleu(right, there, int(sums[-2]), int(sums[-1]), smooth_method="exp").score)


def bleu_signature() -> str:
    """How sacreBLEU counts, in its own words: scores compare only where this is the same."""
    metric = needed().BLEU()
    metric.corpus_score(["a"], [["a"]])
    return str(metric.get_signature())


def needed() -> Any:
    """sacreBLEU, which counts n-grams.

    Raises:
        MissingExtraError: It is not installed.
    """
    return _extras.needed("the score of translations", "translation", "sacrebleu")
