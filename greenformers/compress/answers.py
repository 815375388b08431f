"""What a model answers to examples, by kind of model: its scores, and by how much they differ from another model's."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, inf
from typing import Any, Protocol, Self

import numpy as np
from torch import Tensor

from greenformers.measure.correlation import Resampled, spearman
from greenformers.measure.entities import entity_counts
from greenformers.measure.quality import paired_difference
from greenformers.measure.recognition import bootstrap_difference
from greenformers.measure.translation import bleu_difference, translation_scores

RESAMPLES = 2000
LARGEST = 700
"""Nats of which there is a perplexity in float64."""

Score = tuple[float, list[float] | None]
"""A value, and the 95 % interval of its difference from another model's, if there is one."""


class Answers(Protocol):
    """What a model answers to some examples."""

    def scores(self, beside: Any = None) -> dict[str, Score]:
        """Scores by metric.

        Args:
            beside: Answers of another model of the kind to the same examples.
        """
        ...


@dataclass(frozen=True)
class Embedded:
    """Embeddings, judged by how near they are to another model's, and those of pairs by the order of their cosines.

    Attributes:
        rows: Embeddings (examples, d) at unit length; the two of a pair stand beside each other.
        scored: Scores of the pairs; None for examples that are no pairs.
    """

    rows: Tensor
    scored: np.ndarray | None = None

    @property
    def cosines(self) -> np.ndarray:
        """The cosine of each pair."""
        cosines: np.ndarray = (self.rows[::2] * self.rows[1::2]).sum(-1).numpy()
        return cosines

    def by_itself(self) -> Self:
        """The same, its pairs judged by its own cosines."""
        return replace(self, scored=self.cosines)

    def scores(self, beside: "Embedded | None" = None) -> dict[str, Score]:
        """Cosines to the other rows, and Spearman's correlation of those of pairs with their scores."""
        other = (beside or self).rows
        scores: dict[str, Score] = {}
        # A narrower model's embeddings have no coordinates in common with these.
        if self.rows.shape == other.shape:
            near = (self.rows * other).sum(-1).double().numpy()
            # The other model's own are all 1. Of a single one no interval can be known.
            some = beside is not None and len(near) > 1
            interval = _interval(len(near), lambda at: near[at].mean() - 1) if some else None
            scores["cosine"] = (float(near.mean()), interval)
        if self.scored is not None:
            interval = None if beside is None else spearman_difference(self.cosines, beside.cosines, self.scored)
            scores["spearman"] = (100 * spearman(self.cosines, self.scored), interval)
        return scores


@dataclass(frozen=True)
class Classified:
    """Classes of examples.

    Attributes:
        right: Which are right (examples,).
    """

    right: Tensor

    def scores(self, beside: "Classified | None" = None) -> dict[str, Score]:
        """The accuracy, in percent."""
        interval = None
        if beside is not None and len(self.right) > 1:
            interval = list(paired_difference(self.right, beside.right)[1:])
        return {"accuracy": (100 * self.right.double().mean().item(), interval)}


ENTITY = re.compile(r"O|[BIESLU]-.+")
MARKS = str.maketrans("ESLU", "IBIB")
"""Marks of the last and the single word of an entity, as B and I, which mark the same words."""


@dataclass(frozen=True)
class Words:
    """Tags of the words of sentences.

    Attributes:
        metric: What is counted: "f1" of entities, or the "accuracy" of words.
        counts: Of each sentence how many were told, how many predicted and how many there are (sentences, 3).
    """

    metric: str
    counts: np.ndarray

    @classmethod
    def of(cls, told: Sequence[Sequence[str]], right: Sequence[Sequence[str]], classes: Sequence[str]) -> Self:
        """The counts: of entities, where the classes are tags of these, else of words.

        Args:
            told: The tags of each sentence's words, "" for a word without.
            right: Their right tags.
            classes: All tags.
        """
        if not all(ENTITY.fullmatch(name) for name in classes):
            rows = zip(told, right, strict=True)
            same = [(sum(a == b for a, b in zip(*row, strict=True)), len(row[1]), len(row[1])) for row in rows]
            return cls("accuracy", np.array(same))
        ours, theirs = ([[_bio(tag) for tag in row] for row in rows] for rows in (told, right))
        return cls("f1", np.array(entity_counts(ours, theirs)))

    def scores(self, beside: "Words | None" = None) -> dict[str, Score]:
        """F1 of entities, or accuracy of words, in percent."""
        interval = None
        if beside is not None and len(self.counts) > 1:
            own, other = self.counts, beside.counts
            interval = _interval(len(own), lambda at: _f1(own[at]) - _f1(other[at]))
        return {self.metric: (_f1(self.counts), interval)}


def _bio(tag: str) -> str:
    return tag[:1].translate(MARKS) + tag[1:] if tag else "O"


def _f1(counts: np.ndarray) -> float:
    """F1 in percent; where as many are predicted as there are, that is the share of those told."""
    told, predicted, there = counts.sum(0)
    return float(200 * told / max(predicted + there, 1))


@dataclass(frozen=True)
class Answered:
    """Answers found in texts.

    Attributes:
        f1: F1 of the words of each answer (examples,), in percent.
    """

    f1: np.ndarray

    def scores(self, beside: "Answered | None" = None) -> dict[str, Score]:
        """The mean F1."""
        interval = None
        if beside is not None and len(self.f1) > 1:
            own, other = self.f1, beside.f1
            interval = _interval(len(own), lambda at: own[at].mean() - other[at].mean())
        return {"f1": (float(self.f1.mean()), interval)}


@dataclass(frozen=True)
class Ranked:
    """Scores of examples, judged by their order.

    Attributes:
        given: What the model gives each example (examples,).
        scored: The score that each has (examples,).
    """

    given: np.ndarray
    scored: np.ndarray

    def by_itself(self) -> Self:
        """The same, judged by its own order: what answers as it does agrees with it in full."""
        return replace(self, scored=self.given)

    def scores(self, beside: "Ranked | None" = None) -> dict[str, Score]:
        """Spearman's correlation with the scores that the examples have, in percent."""
        interval = None if beside is None else spearman_difference(self.given, beside.given, self.scored)
        return {"spearman": (100 * spearman(self.given, self.scored), interval)}


@dataclass(frozen=True)
class Predicted:
    """Tokens foreseen.

    Attributes:
        losses: Cross-entropy of the tokens of each text together (texts,), in nats.
        tokens: How many they are (texts,).
    """

    losses: np.ndarray
    tokens: np.ndarray

    def scores(self, beside: "Predicted | None" = None) -> dict[str, Score]:
        """The perplexity; texts without tokens say nothing."""
        read = np.flatnonzero(self.tokens)  # a text may have none
        own, tokens = self.losses[read], self.tokens[read]
        interval = None
        if beside is not None and len(read) > 1:
            other = beside.losses[read]
            interval = _interval(
                len(read), lambda at: _perplexity(own[at], tokens[at]) - _perplexity(other[at], tokens[at])
            )
        return {"perplexity": (_perplexity(own, tokens), interval)}


def _perplexity(losses: np.ndarray, tokens: np.ndarray) -> float:
    """The perplexity of all tokens together; infinite for losses, of a broken model, that it is too large for."""
    mean = float(losses.sum() / tokens.sum())
    return inf if mean > LARGEST else exp(mean)


@dataclass(frozen=True)
class Translated:
    """Translations.

    Attributes:
        texts: What was written for each example.
        references: What should have been.
    """

    texts: Sequence[str]
    references: Sequence[str]

    def scores(self, beside: "Translated | None" = None) -> dict[str, Score]:
        """BLEU."""
        interval = None
        if beside is not None and len(self.texts) > 1:
            interval = bleu_difference(self.texts, beside.texts, self.references)
        return {"bleu": (translation_scores(self.texts, self.references)["bleu"], interval)}


@dataclass(frozen=True)
class Transcribed:
    """Transcripts.

    Attributes:
        wrong: Edits of words that make each the reference (examples,).
        words: Words of each reference (examples,).
    """

    wrong: Tensor
    words: Tensor

    def scores(self, beside: "Transcribed | None" = None) -> dict[str, Score]:
        """The word error rate, in percent."""
        interval = None
        if beside is not None and len(self.wrong) > 1:
            interval = list(bootstrap_difference(self.wrong, beside.wrong, self.words))
        return {"wer": (100 * float(self.wrong.sum() / self.words.sum()), interval)}


@dataclass(frozen=True)
class Several:
    """Answers of several kinds to the same examples.

    Attributes:
        kinds: The answers of each kind.
    """

    kinds: Sequence[Answers]

    def scores(self, beside: "Several | None" = None) -> dict[str, Score]:
        """The scores of each kind."""
        others = [None] * len(self.kinds) if beside is None else beside.kinds
        scores: dict[str, Score] = {}
        for own, other in zip(self.kinds, others, strict=True):
            scores |= own.scores(other)
        return scores


def spearman_difference(a: np.ndarray, b: np.ndarray, scores: np.ndarray, seed: int = 0) -> list[float]:
    """95 % bootstrap interval of 100 times the difference of two Spearman correlations on the same pairs."""
    own, other = Resampled(a, scores), Resampled(b, scores)
    if np.array_equal(b, scores):  # of what scores are ranked by, which is ranked as it is in every draw
        return _interval(len(scores), lambda at: 100 * (own.spearman(at) - 1), seed)
    return _interval(len(scores), lambda at: 100 * (own.spearman(at) - other.spearman(at)), seed)


def _interval(count: int, difference: Callable[[np.ndarray], float], seed: int = 0) -> list[float]:
    """The 95 % bootstrap interval of a difference on so many examples."""
    draw = np.random.default_rng(seed)
    low, high = np.quantile([difference(draw.integers(0, count, count)) for _ in range(RESAMPLES)], [0.025, 0.975])
    return [float(low), float(high)]
