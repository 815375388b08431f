"""Quality of translations. Papineni 2002 (BLEU); Popovic 2015 (chrF); Post 2018, arXiv:1804.08771 (sacreBLEU)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from greenformers import _extras


def translation_scores(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """BLEU and chrF of a corpus, 0 to 100: untokenised, with case, one reference each, sacreBLEU's defaults.

    Args:
        hypotheses: Translations, by sentence.
        references: Reference translations, in the same order.

    Raises:
        ValueError: Raised where hypotheses and references differ in number, or there are none.
        MissingExtraError: Raised where sacreBLEU is not installed.
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

    Args:
        ours: Translations of our system, by sentence.
        theirs: Translations of the other system, in the same order.
        references: Reference translations, in the same order.
        draws: Number of corpora that are drawn.
        seed: Seed of the draws.

    Returns:
        The low and the high end of the interval, in points of BLEU.

    Raises:
        ValueError: Raised where the numbers of sentences differ, or there are none.
        MissingExtraError: Raised where sacreBLEU is not installed.
    """
    if not len(ours) == len(theirs) == len(references) or not references:
        raise ValueError(
            f"both systems must have as many translations as there are references, got {len(ours)} and {len(theirs)} "
            f"of {len(references)}"
        )
    counted = [_counts(hypotheses, references) for hypotheses in (ours, theirs)]
    draw = np.random.default_rng(seed)
    differences = []
    for _ in range(draws):
        at = draw.integers(0, len(references), len(references))
        our_bleu, their_bleu = (_bleu(counts[at].sum(0)) for counts in counted)
        differences.append(our_bleu - their_bleu)
    low, high = np.quantile(differences, [0.025, 0.975])
    return [float(low), float(high)]


def _counts(hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """Right n-grams, all n-grams and both lengths, by sentence: the BLEU of a corpus follows from their sums."""
    metric = needed().BLEU(effective_order=True)  # the same counts without a warning of sacreBLEU
    scores: list[Any] = [
        metric.sentence_score(hypothesis, [reference])
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]
    return np.array([[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores])


def _bleu(sums: np.ndarray) -> float:
    order = (len(sums) - 2) // 2
    right, total = sums[:order].tolist(), sums[order : 2 * order].tolist()
    return float(needed().BLEU.compute_bleu(right, total, int(sums[-2]), int(sums[-1]), smooth_method="exp").score)


def bleu_signature() -> str:
    """SacreBLEU's signature of its settings: scores compare only where it is the same."""
    metric = needed().BLEU()
    metric.corpus_score(["a"], [["a"]])
    return str(metric.get_signature())


def needed() -> Any:
    """The module sacreBLEU, which counts n-grams.

    Raises:
        MissingExtraError: Raised where it is not installed.
    """
    return _extras.needed("the score of translations", "translation", "sacrebleu")
