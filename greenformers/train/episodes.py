"""Episodes of few-shot learning: a few labelled images of classes never seen, and others to be told apart.

Vinyals 2016, arXiv:1606.04080, 2.2: W classes are drawn, K images of each to learn from (the support set) and Q others
of each to be judged by (the query set): "W-way, K-shot".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from greenformers.data import Split


class Episode(NamedTuple):
    """One episode, or E of them, which then are the first dimension of each tensor.

    Attributes:
        support: Images to learn from (W K, 1, S, S).
        support_labels: Their classes (W K,), 0..W - 1.
        queries: Images to be judged by (W Q, 1, S, S).
        query_labels: Their classes (W Q,).
    """

    support: Tensor
    support_labels: Tensor
    queries: Tensor
    query_labels: Tensor


@dataclass(frozen=True, eq=False)
class Episodes:
    """Episodes drawn from a set of images, all classes alike.

    Attributes:
        split: The images, each S x S, of labels 0, 1, ....
        ways: Number W of classes of an episode, at least 2.
        shots: Number K of images to learn from, of each class.
        queries: Number Q of images to be judged by, of each class.

    Raises:
        ValueError: A number is out of range, a class has too few images, or the images are not square.
    """

    split: Split
    ways: int = 5
    shots: int = 1
    queries: int = 15

    def __post_init__(self) -> None:
        sizes = self.split.labels.bincount()
        if not 2 <= self.ways <= len(sizes):
            raise ValueError(f"ways must be in 2..{len(sizes)}, the classes, got {self.ways}")
        for name in ("shots", "queries"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        least = int(sizes.min())
        if self.shots + self.queries > least:
            raise ValueError(
                f"shots + queries must be at most {least}, the images of a class, got {self.shots} + {self.queries}"
            )
        if self.side**2 != self.split.pixels.shape[1]:
            raise ValueError(f"images must be square, got {self.split.pixels.shape[1]} pixels")

    @property
    def side(self) -> int:
        """Height and width S of an image, in pixels."""
        return math.isqrt(self.split.pixels.shape[1])

    def draw(self, source: torch.Generator, count: int) -> Episode:
        """`count` episodes, one after another from `source`; float32 intensities in [0, 1].

        The images of a class stand together, the classes in the order of their labels 0..W - 1.
        """
        order = self.split.labels.argsort(stable=True)
        sizes = self.split.labels.bincount()
        starts = sizes.cumsum(0) - sizes
        support, queries = [], []
        for _ in range(count):
            for label in torch.randperm(len(sizes), generator=source)[: self.ways].tolist():
                places = torch.randperm(int(sizes[label]), generator=source)[: self.shots + self.queries]
                images = order[starts[label] + places]
                support.append(images[: self.shots])
                queries.append(images[self.shots :])
        labels = torch.arange(self.ways)
        return Episode(
            self._images(torch.cat(support), count), labels.repeat_interleave(self.shots).repeat(count, 1),
            self._images(torch.cat(queries), count), labels.repeat_interleave(self.queries).repeat(count, 1),
        )  # fmt: skip

    def _images(self, places: Tensor, count: int) -> Tensor:
        """Images at some places, as (count, images, 1, S, S)."""
        return (self.split.pixels[places].float() / self.split.peak).view(count, -1, 1, self.side, self.side)
