"""Named entities in tagged sentences, and how well they are told. Tjong Kim Sang and De Meulder 2003, CoNLL, 3."""

from collections.abc import Iterable, Sequence


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
    return scores_of(entity_counts(predicted, right))


def entity_counts(predicted: Sequence[Sequence[str]], right: Sequence[Sequence[str]]) -> list[tuple[int, int, int]]:
    """Numbers of entities of each sentence: of those told, those predicted and those that are there.

    Args:
        predicted: Predicted tags of each sentence.
        right: Right tags of each sentence, as many for each.

    Raises:
        ValueError: A sentence has not as many tags in both.
    """
    counts = []
    for number, (ours, theirs) in enumerate(zip(predicted, right, strict=True)):
        if len(ours) != len(theirs):
            raise ValueError(f"sentence {number} must have {len(theirs)} predicted tags, got {len(ours)}")
        a, b = entities(ours), entities(theirs)
        counts.append((len(a & b), len(a), len(b)))
    return counts


def scores_of(counts: Iterable[tuple[int, int, int]]) -> dict[str, float]:
    """The scores of `entity_scores`, from the counts of `entity_counts`."""
    told = predictions = truths = 0
    for ours, all_of_ours, theirs in counts:
        told, predictions, truths = told + ours, predictions + all_of_ours, truths + theirs
    return {
        "f1": 200 * told / max(predictions + truths, 1),
        "precision": 100 * told / max(predictions, 1),
        "recall": 100 * told / max(truths, 1),
    }
