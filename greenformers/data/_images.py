"""Images as data: stored as integers, averaged over squares of pixels on demand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.data import Dataset


@dataclass(frozen=True, eq=False)
class Split(Dataset[dict[str, Tensor]]):
    """Labelled images, stored as integers; an item is `{"input_values": (N, 1) float32, "labels": () int64}`.

    Attributes:
        pixels: (n, N) uint8, or int32 once pooled; 0..peak.
        labels: (n,) int64, 0..classes - 1.
        peak: Value of a pixel of intensity 1.
    """

    pixels: Tensor
    labels: Tensor
    peak: int

    @property
    def values(self) -> Tensor:
        """All intensities, (n, N, 1) float32 in [0, 1]. Computed at each call, at 4 N n bytes."""
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
        name: Name of the data set, that of its file in this folder.
        classes: Number of classes.
        train: Examples to train on.
        test: Examples to test on.
        valid: Examples to validate on; None where the data set has none, and models are validated on the test.
    """

    name: str
    classes: int
    train: Split
    test: Split
    valid: Split | None = None

    @property
    def length(self) -> int:
        """Number of pixels of an image, N, without the [CLS]."""
        return self.train.pixels.shape[1]

    def each(self, change: Callable[[Split], Split]) -> Splits:
        """The data set with every split changed alike."""
        valid = None if self.valid is None else change(self.valid)
        return replace(self, train=change(self.train), test=change(self.test), valid=valid)


def pooled(images: Splits, pool: int) -> Splits:
    """Images of a side `pool` times shorter, each square of pixels averaged into one.

    Raises:
        ValueError: `pool` does not divide the side.
    """
    side = math.isqrt(images.length)
    divisors = [d for d in range(1, side + 1) if side % d == 0]
    if pool not in divisors:
        raise ValueError(f"pool must be one of {', '.join(map(str, divisors))} for {side}x{side} images, got {pool}")
    if pool == 1:
        return images
    return images.each(lambda split: _pooled(split, side, pool))


def _pooled(split: Split, side: int, pool: int) -> Split:
    """Each square of pool x pool pixels as its sum; the peak grows alike, so the intensity is the mean."""
    images = split.pixels.unflatten(1, (side, side))
    sums = torch.zeros(len(split), side // pool, side // pool, dtype=torch.int32)
    for row in range(pool):
        for column in range(pool):
            sums += images[:, row::pool, column::pool]
    return replace(split, pixels=sums.flatten(1), peak=split.peak * pool**2)
