"""Draws of at most `limit` examples of each split; with the same seed a smaller draw is part of a larger one."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from greenformers.data._images import Split, Splits
from greenformers.data._kinds import Examples, Labelled, Pairs, Sentences, Summaries, Tagged, Text

Data = TypeVar("Data", Splits, Text, Pairs, Summaries, Labelled, Tagged)


def drawn(data: Data, limit: int | None, seed: int) -> Data:
    """At most `limit` examples of each split, in their order; of running text the first `limit` lines.

    Where there are classes they are drawn in their proportions, each class at least once;
    where there are none, every example is as likely as another.

    Raises:
        ValueError: `limit` is below 1, or below the number of classes.
    """
    if limit is None:
        return data
    _check(data, limit)
    if isinstance(data, Splits):
        return data.each(lambda split: _images(split, limit, seed))
    if isinstance(data, Text):
        train, valid, test = (_first_lines(text, limit) for text in (data.train, data.valid, data.test))
        return replace(data, train=train, valid=valid, test=test)
    if isinstance(data, Pairs):
        pairs = [[split[i] for i in plain(len(split), limit, seed)] for split in (data.train, data.valid, data.test)]
        return replace(data, train=pairs[0], valid=pairs[1], test=pairs[2])
    if isinstance(data, Summaries):
        papers = [[split[i] for i in plain(len(split), limit, seed)] for split in (data.train, data.valid, data.test)]
        return replace(data, train=papers[0], valid=papers[1], test=papers[2])
    if isinstance(data, Tagged):
        sentences = [_sentences(split, limit, seed) for split in (data.train, data.valid, data.test)]
        return replace(data, train=sentences[0], valid=sentences[1], test=sentences[2])
    even = data.classes is not None
    parts = [_examples(split, limit, seed, even) for split in (data.train, data.valid, data.test)]
    return replace(data, train=parts[0], valid=parts[1], test=parts[2])


def stratified(labels: Tensor, limit: int, seed: int) -> Tensor:
    """Places of at most `limit` examples, ascending; Sainte-Laguë apportions them once each class has one.

    Args:
        labels: (n,) int64, 0..classes - 1.
        limit: Number of places, at least the number of classes.
        seed: Seed of the draw.
    """
    order = _shuffled(len(labels), seed)
    order = order[labels[order].argsort(stable=True)]  # (n,), by class, shuffled within
    sizes = labels.bincount()  # (classes,)
    rank = torch.cat([torch.arange(size, dtype=torch.float64) for size in sizes.tolist()])  # (n,), within its class
    turn = torch.where(rank == 0, 0, (rank + 0.5) / sizes.repeat_interleave(sizes))
    return order[turn.argsort(stable=True)[:limit]].sort().values


def plain(size: int, limit: int, seed: int) -> list[int]:
    """Places of at most `limit` of `size` examples, ascending."""
    return _shuffled(size, seed)[:limit].sort().values.tolist()


def _shuffled(size: int, seed: int) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed))


def _check(data: Splits | Text | Pairs | Summaries | Labelled | Tagged, limit: int) -> None:
    classes = 0
    if isinstance(data, Splits):
        classes = data.classes
    elif isinstance(data, Labelled) and data.classes is not None:
        classes = len(data.classes)
    if classes and limit < classes:
        raise ValueError(f"limit must be at least {classes}, the classes of {data.name}, got {limit}")
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")


def _images(split: Split, limit: int, seed: int) -> Split:
    if limit >= len(split):
        return split
    places = stratified(split.labels, limit, seed)
    return replace(split, pixels=split.pixels[places], labels=split.labels[places])


def _examples(split: Examples, limit: int, seed: int, even: bool) -> Examples:
    if limit >= len(split):
        return split
    places = stratified(torch.tensor(split.labels), limit, seed).tolist() if even else plain(len(split), limit, seed)
    return split.at(places)


def _sentences(split: Sentences, limit: int, seed: int) -> Sentences:
    places = plain(len(split), limit, seed)
    return Sentences([split.words[i] for i in places], [split.tags[i] for i in places])


def _first_lines(text: str, limit: int) -> str:
    parts = text.split("\n", limit)
    return text if len(parts) <= limit else text[: len(text) - len(parts[-1])]
