"""Importance of positions, by integrated gradients over the embeddings. Cahyawijaya 2021, 5.4.

Sundararajan 2017, arXiv:1703.01365, eq. 1: along the straight line from an empty input to the real one the gradients of
the logit are averaged, and multiplied by the difference of the two. Here the empty input has the embedding of [MASK] at
every token but [CLS] and [SEP]. The attributions of all tokens add up to the difference of the two logits. A token's
attribution is divided evenly among its characters, and assigned to their positions.
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
from greenformers.genome.finetune import splits_of
from greenformers.genome.people import People
from greenformers.genome.settings import Finetuning, sequences_of
from greenformers.measure.device import accelerator
from greenformers.measure.quality import evaluating
from greenformers.report.track import track
from greenformers.train import run

if TYPE_CHECKING:
    from numpy.typing import NDArray


AT_ONCE = 8
"""Midpoints that pass through the network together: each needs the memory of a sequence in training."""


def integrated_gradients(
    model: PreTrainedModel, ids: Tensor, unchanged: Sequence[int], mask_id: int, *, steps: int = 32
) -> tuple[Tensor, float]:
    """Attributions of the tokens of one sequence to the logit of class 1 over that of class 0.

    Args:
        model: A classifier of two classes.
        ids: Ids of the tokens, (n,).
        unchanged: Ids of tokens that the empty input has too.
        mask_id: Id of the token that the empty input has in place of the others.
        steps: Number of midpoints of the sum that approximates the integral.

    Returns:
        Attributions (n,), and the difference of their sum from the difference of the logits of both inputs.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    embedding = model.get_input_embeddings()
    ids = ids.to(next(model.parameters()).device)
    empty = torch.where(torch.isin(ids, torch.tensor(unchanged, device=ids.device)), ids, mask_id)
    with evaluating(model), torch.no_grad():
        start, end = embedding(empty), embedding(ids)
    difference = end - start

    def logit(inputs: Tensor) -> Tensor:
        # The given vectors replace the word embeddings; positions and all that follows are the model's.
        handle = embedding.register_forward_hook(lambda *_: inputs)
        try:
            logits = model(input_ids=ids.expand(len(inputs), -1)).logits
        finally:
            handle.remove()
        return logits[:, 1] - logits[:, 0]

    with evaluating(model):
        shares, gradients = (torch.arange(steps, device=ids.device) + 0.5) / steps, torch.zeros_like(difference)
        for some in shares.split(AT_ONCE):
            points = (start + some[:, None, None] * difference).requires_grad_()
            gradients += torch.autograd.grad(logit(points).sum(), points)[0].sum(0)
        with torch.no_grad():
            whole = (logit(end[None]) - logit(start[None])).item()
    values = (gradients / steps * difference).sum(-1).cpu()
    return values, float(values.sum()) - whole


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
    special = [tokenizer.cls_token_id, tokenizer.sep_token_id]
    values = np.zeros((len(numbers), len(people.region)))
    for row, number in enumerate(numbers):
        ids = torch.tensor(tokenizer(people.text(number), verbose=False)["input_ids"])
        tokens, _ = integrated_gradients(model, ids, special, tokenizer.mask_token_id, steps=steps)
        lengths = [len(token) for token in tokenizer.convert_ids_to_tokens(ids[1:-1].tolist())]
        shares = np.repeat(tokens[1:-1].numpy() / lengths, lengths)
        np.add.at(values[row], places(people.pairs[number]), shares)
        progress((row + 1) / len(numbers))
    return values


def spreads(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Spread of each position: the standard deviation of its attributions over people, (positions,).

    A position at which all people are equal changes all their logits equally.
    """
    return values.std(axis=0)


def ranked(
    people: People, numbers: Sequence[int], values: NDArray[np.float64], *, reach: int = 16
) -> list[tuple[int, float]]:
    """Variants and their importance: how strongly the attributions near them depend on them. The largest first.

    A token holds a variant together with its neighbours, and a variant changes how the bases around it are divided into
    tokens. So the attributions of `reach` positions on either side are summed for each person; the importance is the
    standard deviation of the part of these sums that is linear in how often a person has the variant's symbol.

    Args:
        people: All people.
        numbers: Indices of the people with attributions.
        values: Their attributions, (people, positions).
        reach: Number of positions on either side, about the characters of a token.

    Returns:
        Position of each variant, from 1, and its importance; the largest one where a position has several symbols.
    """
    counts, features = people.counts()
    sums = np.cumsum(np.pad(values, ((0, 0), (1, 0))), axis=1)
    best: dict[int, float] = {}
    for (position, _), column in zip(features, counts[list(numbers)].T.astype(float), strict=True):
        place = position - 1 - people.region.start
        near = sums[:, min(place + reach + 1, values.shape[1])] - sums[:, max(place - reach, 0)]
        spread = column.std()
        value = abs(float(np.cov(near, column, bias=True)[0, 1])) / spread if spread else 0.0
        best[position] = max(best.get(position, 0.0), value)
    return sorted(best.items(), key=lambda item: -item[1])


@dataclass(frozen=True)
class Explained:
    """The explanation of a network.

    Attributes:
        region: The region of the sequences.
        people: Number of people it is computed from.
        values: Spread of every position, see `spreads`, (positions,).
        ranked: Positions and importance of the variants, see `ranked`, the most important first.
        names: Names of known variants, by position.
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
        folder: Folder of the run.
        people: Most test people to use.
        steps: Number of midpoints, see `integrated_gradients`.
        names: VCF or BCF file with names (ID) of variants.
        progress: Function that is called with the share that is done.

    Raises:
        OSError: There is no finished run in the folder, or its file of people is missing.
        ValueError: The folder holds runs of splits and is none itself, or the tokens of the run are k-mers.
        GenomeError: The file of names cannot be used.
    """
    if not (folder / run.SETTINGS).exists() and (splits := splits_of(folder)):
        raise ValueError(f"{folder} holds a run for each split; name one: {', '.join(splits)}")
    settings = run.settings_of(folder, Finetuning)
    everybody = People.load(sequences_of(settings), settings.region, disease=settings.disease)
    numbers = everybody.splits(settings.split, settings.valid_share, settings.test_share)["test"][:people]
    model = run.trained(folder, Finetuning).to(accelerator())  # type: ignore[arg-type]
    tokenizer = replace(settings, init=str(folder), tokens=None).tokenizer()
    if "kmer_pattern" in tokenizer.init_kwargs:
        raise ValueError(f"{folder}: its tokens are k-mers, which overlap; explain needs subwords")
    variant_names = {} if names is None else variants.names(names, everybody.region)
    values = attributions(model, tokenizer, everybody, numbers, steps=steps, progress=progress)
    return Explained(everybody.region, len(numbers), spreads(values), ranked(everybody, numbers, values), variant_names)


def picture(explanation: Explained, count: int) -> Figure:
    """The `count` most important variants with the table's figures, and below them the spread of every position."""
    marks = {
        position: (explanation.names.get(position, str(position)), score)
        for position, score in explanation.ranked[:count]
    }
    title = f"What the network looks at, {explanation.region}"
    return track(
        title, explanation.region.start + 1, explanation.values.tolist(), marks,
        quantities=("Importance\nof a variant (logit)", "Spread\nof a position (logit)"),
        each="spread of a position: standard deviation of its attributions over people",
        marked="importance of a variant, as in the table: what follows its copies within 16 positions",
    )  # fmt: skip
