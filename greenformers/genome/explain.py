"""Which positions decide: integrated gradients over the embeddings, gathered to the region. Thesis 5.4.

Sundararajan 2017, arXiv:1703.01365, eq. 1: along the straight line from an empty input to the real one the gradients of
the logit are averaged, and multiplied by the difference of the two. Here the empty input has the embedding of [MASK] at
every token but [CLS] and [SEP]. The attributions of all tokens add up to the difference of the two logits. A token's
attribution is shared out evenly over its characters, and belongs to their positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from greenformers.genome import variants
from greenformers.genome.diplotype import places
from greenformers.genome.files import Region
from greenformers.genome.people import People
from greenformers.genome.settings import Finetuning, sequences_of
from greenformers.measure.quality import evaluating
from greenformers.report.track import track
from greenformers.train import run

if TYPE_CHECKING:
    from numpy.typing import NDArray


def integrated_gradients(
    model: PreTrainedModel, ids: Tensor, kept: Sequence[int], mask_id: int, *, steps: int = 32
) -> tuple[Tensor, float]:
    """Attributions of the tokens of one sequence to the logit of class 1 over that of class 0.

    Args:
        model: a classifier of two classes.
        ids: of the tokens, (n,).
        kept: tokens that the empty input has too.
        mask_id: token whose embedding stands for nothing.
        steps: of the sum that stands for the integral; midpoints.

    Returns:
        (n,), and how far their sum is from the difference of the logits of both inputs.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    table = model.get_input_embeddings()
    empty = torch.where(torch.isin(ids, torch.tensor(kept)), ids, mask_id)
    with evaluating(model), torch.no_grad():
        start, end = table(empty), table(ids)
    way = end - start

    def logit(inputs: Tensor) -> Tensor:
        # What stands for the words is put in their place; positions and all that follows are the model's.
        handle = table.register_forward_hook(lambda *_: inputs)
        try:
            logits = model(input_ids=ids.expand(len(inputs), -1)).logits
        finally:
            handle.remove()
        return logits[:, 1] - logits[:, 0]

    with evaluating(model):
        points = (start + ((torch.arange(steps) + 0.5) / steps)[:, None, None] * way).requires_grad_()
        gradients = torch.autograd.grad(logit(points).sum(), points)[0]
        with torch.no_grad():
            whole = (logit(end[None]) - logit(start[None])).item()
    found = (gradients.mean(0) * way).sum(-1)
    return found, float(found.sum()) - whole


def attributions(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    people: People,
    numbers: Sequence[int],
    *,
    steps: int = 32,
    progress: Callable[[float], None] = lambda _: None,
) -> NDArray[np.float64]:
    """Attributions of some people's positions, (people, positions)."""
    kept = [tokenizer.cls_token_id, tokenizer.sep_token_id]
    found = np.zeros((len(numbers), len(people.region)))
    for row, number in enumerate(numbers):
        ids = torch.tensor(tokenizer(people.text(number), verbose=False)["input_ids"])
        tokens, _ = integrated_gradients(model, ids, kept, tokenizer.mask_token_id, steps=steps)
        lengths = [len(token) for token in tokenizer.convert_ids_to_tokens(ids[1:-1].tolist())]
        each = np.repeat(tokens[1:-1].numpy() / lengths, lengths)
        np.add.at(found[row], places(people.pairs[number]), each)
        progress((row + 1) / len(numbers))
    return found


def importance(found: NDArray[np.float64]) -> NDArray[np.float64]:
    """How much a position tells people apart: the standard deviation of its attributions, (positions,).

    What everybody has alike moves everybody's logit by the same.
    """
    return found.std(axis=0)


def ranked(
    people: People, numbers: Sequence[int], found: NDArray[np.float64], *, reach: int = 16
) -> list[tuple[int, float]]:
    """Variants by how much of the attributions near them follows them, the most important first.

    A token has a variant and what is beside it in it, and another variant makes other tokens of the bases around. So
    the attributions of `reach` positions on either side are added up for each person; the value is the standard
    deviation of the part of these sums that is linear in how often a person has the variant's symbol.

    Args:
        people: everybody.
        numbers: whose attributions there are.
        found: their attributions, (people, positions).
        reach: positions, about the characters of a token.

    Returns:
        Position of each variant, from 1, and its value; of several symbols at a position the largest.
    """
    counts, features = people.counts()
    sums = np.cumsum(np.pad(found, ((0, 0), (1, 0))), axis=1)
    best: dict[int, float] = {}
    for (position, _), column in zip(features, counts[list(numbers)].T.astype(float), strict=True):
        place = position - 1 - people.region.start
        near = sums[:, min(place + reach + 1, found.shape[1])] - sums[:, max(place - reach, 0)]
        spread = column.std()
        value = abs(float(np.cov(near, column, bias=True)[0, 1])) / spread if spread else 0.0
        best[position] = max(best.get(position, 0.0), value)
    return sorted(best.items(), key=lambda one: -one[1])


@dataclass(frozen=True)
class Explained:
    """What a network looks at.

    Attributes:
        region: where.
        people: how many were looked at.
        values: importance of every position, (positions,).
        ranked: of the variants, the most important first.
        names: of known variants, by position.
    """

    region: Region
    people: int
    values: NDArray[np.float64]
    ranked: list[tuple[int, float]]
    names: dict[int, str]


def explained(
    folder: Path, *, people: int, steps: int, names: Path | None = None, progress: Callable[[float], None]
) -> Explained:
    """Explain a finished run of `genome finetune` on its test people.

    Args:
        folder: of the run.
        people: how many of them, at most.
        steps: see `integrated_gradients`.
        names: VCF or BCF with names (ID) of variants.
        progress: told the share that is done.

    Raises:
        OSError: there is no finished run in the folder, or its people are gone.
        ValueError: its tokens are k-mers.
        GenomeError: the file of names cannot be used.
    """
    settings = run.settings_of(folder, Finetuning)
    everybody = People.load(sequences_of(settings), settings.region)
    some = everybody.splits(settings.split, settings.valid_share, settings.test_share)["test"][:people]
    model, tokenizer = run.trained(folder, Finetuning), replace(settings, init=str(folder), tokens=None).tokenizer()
    if "kmer_pattern" in tokenizer.init_kwargs:
        raise ValueError(f"{folder}: its tokens are k-mers, which overlap; explain needs subwords")
    known = {} if names is None else variants.names(names, everybody.region)
    found = attributions(model, tokenizer, everybody, some, steps=steps, progress=progress)
    return Explained(everybody.region, len(some), importance(found), ranked(everybody, some, found), known)


def picture(found: Explained, shown: int) -> Figure:
    """A track along the region, with so many of the most important variants: their names and the table's figures."""
    marks = {position: (found.names.get(position, str(position)), score) for position, score in found.ranked[:shown]}
    title = f"What the network looks at, {found.region}"
    return track(
        title, found.region.start + 1, found.values.tolist(), marks, what="Importance (logit)",
        each="one position: standard deviation of its attributions",
        marked="a variant: what follows it within 16 positions, as in the table",
    )  # fmt: skip
