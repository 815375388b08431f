"""Quality of translations. Papineni 2002 (BLEU); Popovic 2015 (chrF); Post 2018, arXiv:1804.08771 (sacreBLEU)."""

from collections.abc import Sequence

from sacrebleu import BLEU, CHRF


def translation_scores(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """BLEU and chrF of a corpus, 0 to 100: untokenised, with case, one reference each, sacreBLEU's defaults.

    Raises:
        ValueError: the numbers of hypotheses and references differ, or there is none.
    """
    if len(hypotheses) != len(references) or not references:
        raise ValueError(f"there must be as many references as hypotheses, got {len(references)} and {len(hypotheses)}")
    bleu, chrf = (metric.corpus_score(list(hypotheses), [list(references)]).score for metric in (BLEU(), CHRF()))
    return {"bleu": bleu, "chrf": chrf}


def bleu_signature() -> str:
    """How sacreBLEU counts, in its own words: scores compare only where this is the same."""
    metric = BLEU()
    metric.corpus_score(["a"], [["a"]])
    return str(metric.get_signature())
