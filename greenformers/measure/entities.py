"""Named entities in tagged sentences, and how well they are told. Tjong Kim Sang and De Meulder 2003, CoNLL, 3."""

from collections.abc import Sequence


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Kind, first word and word after the last of each entity of a sentence.

    An entity begins with B-x, or with I-x that follows no word of kind x; it goes on over the I-x that follow.

    Args:
        tags: Tag of each word: "O", or "B-x" or "I-x" of kind x.

    Raises:
        ValueError: A tag is none of these.
    """
    spans: set[tuple[str, int, int]] = set()
    kind, start = "", 0
    for place, tag in enumerate([*tags, "O"]):
        mark, _, own = tag.partition("-")
        if mark not in ("B", "I", "O") or (mark == "O") != (not own):
            raise ValueError(f"tags must be O, or B- or I- and a kind, got {tag!r}")
        if kind and (mark == "B" or own != kind):
            spans.add((kind, start, place))
        if own and (mark == "B" or own != kind):
            start = place
        kind = own
    return spans


def entity_scores(predicted: Sequence[Sequence[str]], right: Sequence[Sequence[str]]) -> dict[str, float]:
    """Precision, recall and their harmonic mean F1 of entities, over all sentences and kinds, in percent.

    An entity counts as told only where kind, first and last word are right; 0 where there is none to divide by.

    Args:
        predicted: Predicted tags of each sentence.
        right: Right tags of each sentence, as many for each.

    Raises:
        ValueError: A sentence has not as many tags in both.
    """
    told = predictions = truths = 0
    for number, (ours, theirs) in enumerate(zip(predicted, right, strict=True)):
        if len(ours) != len(theirs):
            raise ValueError(f"sentence {number} must have {len(theirs)} predicted tags, got {len(ours)}")
        a, b = entities(ours), entities(theirs)
        told, predictions, truths = told + len(a & b), predictions + len(a), truths + len(b)
    return {
        "f1": 200 * told / max(predictions + truths, 1),
        "precision": 100 * told / max(predictions, 1),
        "recall": 100 * told / max(truths, 1),
    }
