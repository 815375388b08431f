"""Data sets, one a file; `load(name, ...)` finds them by file name.

An image of side S is a sequence of N = S * S pixels, row by row; the [CLS] in front of it is the model's.
A module here is one data set and has one public function, `load(folder) -> Splits`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import torch
from torch import Tensor
from torch.utils.data import Dataset

__all__ = ["Split", "Splits", "load", "names"]

SEEDS = 2**32  # what transformers.set_seed accepts


@dataclass(frozen=True, eq=False)
class Split(Dataset[dict[str, Tensor]]):
    """Labelled images, kept as integers; an item is `{"input_values": (N, 1) float32, "labels": () int64}`.

    Attributes:
        pixels: (n, N) uint8, or int32 once pooled; 0..peak.
        labels: (n,) int64, 0..classes - 1.
        peak: the pixel that stands for intensity 1.
    """

    pixels: Tensor
    labels: Tensor
    peak: int

    @property
    def values(self) -> Tensor:
        """All intensities, (n, N, 1) float32 in [0, 1]. Computed at each call: 4 N n bytes."""
        return self._intensity(self.pixels)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_values": self._intensity(self.pixels[index]), "labels": self.labels[index]}

    def __getitems__(self, indices: list[int]) -> list[dict[str, Tensor]]:
        # The DataLoader asks for a batch at once: one conversion instead of one an image.
        values = self._intensity(self.pixels[indices])  # (B, N, 1)
        labels = self.labels[indices]  # (B,)
        return [{"input_values": x, "labels": y} for x, y in zip(values, labels, strict=True)]

    def _intensity(self, pixels: Tensor) -> Tensor:
        return (pixels.float() / self.peak).unsqueeze(-1)


@dataclass(frozen=True, eq=False)
class Splits:
    """A data set of square images.

    Attributes:
        name: the file of this folder it came from.
        classes: number of classes.
        train: examples to learn from.
        test: examples to score on.
    """

    name: str
    classes: int
    train: Split
    test: Split

    @property
    def length(self) -> int:
        """Pixels an image, N; without the [CLS]."""
        return self.train.pixels.shape[1]


def names() -> list[str]:
    """Every data set of this folder."""
    return sorted(module.name for module in iter_modules(__path__) if not module.name.startswith("_"))


def load(name: str, folder: str | Path | None = None, limit: int | None = None, pool: int = 1, seed: int = 0) -> Splits:
    """Load a data set, from `folder` unless it comes with a library.

    Args:
        name: one of `names()`.
        folder: where the files of the data set are.
        limit: at most so many training, and so many test examples; at least `classes`, None for all.
            They are drawn in the proportions of the classes and stay in their order; with the same seed a
            smaller draw is part of a larger one.
        pool: side of the square of pixels averaged into one; divides the side of the image.
        seed: of the draw; 0..2**32 - 1.

    Raises:
        ValueError: an argument out of its range, or a damaged file.
        OSError: the folder or a file is missing or cannot be read.
    """
    if name not in names():
        raise ValueError(f"data set must be one of {', '.join(names())}, got {name!r}")
    if not 0 <= seed < SEEDS:
        raise ValueError(f"seed must be in 0..{SEEDS - 1}, got {seed}")
    splits: Splits = import_module(f"{__name__}.{name}").load(folder)
    if limit is not None and limit < splits.classes:
        raise ValueError(f"limit must be at least {splits.classes}, the classes of {name}, got {limit}")
    side = math.isqrt(splits.length)
    divisors = [d for d in range(1, side + 1) if side % d == 0]
    if pool not in divisors:
        raise ValueError(f"pool must be one of {', '.join(map(str, divisors))} for {side}x{side} images, got {pool}")
    train, test = (_pooled(_drawn(split, limit, seed), side, pool) for split in (splits.train, splits.test))
    return replace(splits, train=train, test=test)


def _drawn(split: Split, limit: int | None, seed: int) -> Split:
    """At most `limit` examples; Sainte-Laguë apportions them to the classes once each class has one."""
    if limit is None or limit >= len(split):
        return split
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))
    order = order[split.labels[order].argsort(stable=True)]  # (n,), by class, shuffled within
    sizes = split.labels.bincount()  # (classes,)
    rank = torch.cat([torch.arange(size, dtype=torch.float64) for size in sizes.tolist()])  # (n,), within its class
    turn = torch.where(rank == 0, 0, (rank + 0.5) / sizes.repeat_interleave(sizes))
    chosen = order[turn.argsort(stable=True)[:limit]].sort().values
    return replace(split, pixels=split.pixels[chosen], labels=split.labels[chosen])


def _pooled(split: Split, side: int, pool: int) -> Split:
    """Each square of pool x pool pixels as its sum; the peak grows alike, so the intensity is the mean."""
    if pool == 1:
        return split
    images = split.pixels.unflatten(1, (side, side))
    sums = torch.zeros(len(split), side // pool, side // pool, dtype=torch.int32)
    for row in range(pool):
        for column in range(pool):
            sums += images[:, row::pool, column::pool]
    return replace(split, pixels=sums.flatten(1), peak=split.peak * pool**2)
