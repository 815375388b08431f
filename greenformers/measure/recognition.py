"""Character and word error rate, and their confidence intervals by bootstrap. Bisani and Ney 2004 (the bootstrap)."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Literal
from unicodedata import category

import torch
from torch import Tensor

from greenformers import _extras

KEPT = "_'\u200c\u200d"
"""Signs within words: of contractions, and those that join letters or keep them apart."""

AT_ONCE = 2**20
"""Utterances that are drawn at once."""


def scores(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Error rates of transcripts, of all utterances of a corpus together.

    White space around an utterance does not count. A space inside is a character: text without spaces, as Chinese,
    is one word an utterance, and its "wer" is the share of utterances with an error.

    Args:
        hypotheses: Transcripts, by utterance.
        references: True texts, in the same order.

    Returns:
        "cer" and "wer": edits over characters, and words, of the references, in percent, above 100 where hypotheses
        are much too long; "mean_length": mean number of characters of a hypothesis.

    Raises:
        ValueError: Raised where hypotheses and references differ in number, there are none, or a reference is empty.
        MissingExtraError: Raised where jiwer is not installed.
    """
    characters = _aligned(hypotheses, references)
    words = needed().process_words(list(references), list(hypotheses))
    written = sum(len(hypothesis) for hypothesis in characters.hypotheses)
    return {"cer": 100 * characters.cer, "wer": 100 * words.wer, "mean_length": written / len(references)}


def edits(
    hypotheses: Sequence[str], references: Sequence[str], unit: Literal["character", "word"] = "character"
) -> tuple[Tensor, Tensor]:
    """Edits (insertions, deletions and substitutions), and lengths of the references: both (n,), for n utterances.

    Args:
        hypotheses: Transcripts, by utterance.
        references: True texts, in the same order.
        unit: Unit of edits and lengths.

    Raises:
        ValueError, MissingExtraError: Raised as by `scores`.
    """
    aligned = _aligned(hypotheses, references, unit)
    # The span of an insertion in the reference is empty, and that of a deletion in the hypothesis.
    counts = [
        sum(
            max(part.ref_end_idx - part.ref_start_idx, part.hyp_end_idx - part.hyp_start_idx)
            for part in parts
            if part.type != "equal"
        )
        for parts in aligned.alignments
    ]
    return torch.tensor(counts), torch.tensor([len(reference) for reference in aligned.references])


def right_words(hypothesis: Sequence[str], reference: Sequence[str]) -> list[bool]:
    """Whether each word of a hypothesis is right: equal to that of the reference which it is aligned with.

    Args:
        hypothesis: Words of the hypothesis.
        reference: Words of the reference; where there are none, no word is right.

    Raises:
        MissingExtraError: Raised where jiwer is not installed.
    """
    right = [False] * len(hypothesis)
    if hypothesis and reference:
        (parts,) = needed().process_words(" ".join(reference), " ".join(hypothesis)).alignments
        for part in parts:
            if part.type == "equal":
                right[part.hyp_start_idx : part.hyp_end_idx] = [True] * (part.hyp_end_idx - part.hyp_start_idx)
    return right


def plain_words(text: str) -> str:
    """A text in small letters without punctuation, in which corpora of speech and models differ.

    A text that is punctuation alone stays as it is.
    """
    # Vowels of many scripts are marks, which are no letters by themselves.
    said = (c if c.isalnum() or c in KEPT or category(c)[0] == "M" else " " for c in text.casefold())
    bare = " ".join("".join(said).split())
    return bare or text


def bootstrap(
    edits: Tensor, lengths: Tensor, groups: Sequence[str] | None = None, *, draws: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Give the 95 % interval of the character error rate, in percent, by drawing utterances with replacement.

    Args:
        edits: Edits of each utterance (n,), see `edits`.
        lengths: Characters of each reference (n,), see `edits`.
        groups: Group of each utterance, as its speaker; whole groups are drawn then, as utterances of one speaker are
            not independent.
        draws: Number of corpora that are drawn.
        seed: Seed of the draws.

    Raises:
        ValueError: Raised where the shapes do not fit, a length is below 1, there are fewer than 2 utterances or groups
            to draw from, an utterance has no group, or draws is below 1.
    """
    _check(edits, lengths, groups, draws)
    wrong, written = edits.double(), lengths.double()
    if groups is not None:
        wrong, written = _summed(wrong, groups), _summed(written, groups)
    source, rates = torch.Generator().manual_seed(seed), []
    at_once = max(1, AT_ONCE // len(wrong))
    for first in range(0, draws, at_once):
        chosen = torch.randint(len(wrong), (min(at_once, draws - first), len(wrong)), generator=source)
        rates.append(100 * wrong[chosen].sum(1) / written[chosen].sum(1))
    low, high = torch.cat(rates).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low, high


def bootstrap_difference(
    edits_a: Tensor,
    edits_b: Tensor,
    lengths: Tensor,
    groups: Sequence[str] | None = None,
    *,
    draws: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Give the 95 % interval of the error rate of a less that of b, in percentage points, on the same draws.

    Args:
        edits_a: Edits of model a, by utterance (n,).
        edits_b: Edits of model b on the same utterances (n,).
        lengths: Characters of each reference (n,).
        groups: Group of each utterance, as its speaker; whole groups are drawn then.
        draws: Number of corpora that are drawn.
        seed: Seed of the draws.

    Raises:
        ValueError: Raised where `edits_a` and `edits_b` differ in shape, or as by `bootstrap`.
    """
    if edits_a.shape != edits_b.shape:
        raise ValueError(f"edits must be of the same utterances, got {tuple(edits_a.shape)} and {tuple(edits_b.shape)}")
    return bootstrap(edits_a - edits_b, lengths, groups, draws=draws, seed=seed)


def _check(edits: Tensor, lengths: Tensor, groups: Sequence[str] | None, draws: int) -> None:
    if edits.dim() != 1 or edits.shape != lengths.shape:
        raise ValueError(f"edits and lengths must be (n,), got {tuple(edits.shape)} and {tuple(lengths.shape)}")
    if len(lengths) and lengths.min() < 1:
        raise ValueError(f"lengths must be at least 1, got {lengths.min().item()}")
    if groups is not None and len(groups) != len(edits):
        raise ValueError(f"there must be a group for each of {len(edits)} utterances, got {len(groups)}")
    if groups is not None and None in groups:
        raise ValueError(f"each utterance must have a group, utterance {groups.index(None)} has none")
    units = len(edits) if groups is None else len(set(groups))
    if units < 2:
        raise ValueError(f"there must be at least 2 {'utterances' if groups is None else 'groups'}, got {units}")
    if draws < 1:
        raise ValueError(f"draws must be at least 1, got {draws}")


def _summed(values: Tensor, groups: Sequence[str]) -> Tensor:
    """The sum of each group, in the order in which groups first appear."""
    places = {group: place for place, group in enumerate(dict.fromkeys(groups))}
    index = torch.tensor([places[group] for group in groups])
    return values.new_zeros(len(places)).index_add(0, index, values)


def _aligned(hypotheses: Sequence[str], references: Sequence[str], unit: str = "character") -> Any:
    """Alignment of hypotheses and references by jiwer, in characters or words."""
    if len(hypotheses) != len(references) or not references:
        raise ValueError(f"there must be as many references as hypotheses, got {len(references)} and {len(hypotheses)}")
    for place, reference in enumerate(references):
        if not reference.strip():
            raise ValueError(f"reference {place} must have at least 1 character, it is empty")
    align = needed().process_words if unit == "word" else needed().process_characters
    return align(list(references), list(hypotheses))


def needed() -> ModuleType:
    """jiwer, which counts the errors.

    Raises:
        MissingExtraError: Raised where jiwer is not installed.
    """
    return _extras.needed("the error rate of transcripts", "speech", "jiwer")
