"""Examples of one file or folder, split by seed into disjoint parts: to calibrate with, learn from and judge by."""

from collections.abc import Sequence
from typing import TypeVar

import torch

from greenformers.data._examples import Examples
from greenformers.data._texts import Texts

T = TypeVar("T")

PARTS = ("calibration", "training", "judging")
SHARES = {"calibration": 0.2, "judging": 0.2}
"""Shares of the examples, where there is something to learn from too, which gets the rest."""
MOST = {"calibration": 1000, "judging": 2000}
LEAST = 8
"""Examples that a file must have to be split."""


def parts_of(
    examples: Sequence[T], purposes: Sequence[str], seed: int, limit: int = MOST["calibration"]
) -> dict[str, list[T]]:
    """Disjoint parts, drawn by seed, each in the order of the file.

    Args:
        examples: Examples of any kind.
        purposes: Names of `PARTS`; a single part gets all examples, up to its largest number.
        seed: Seed of the draw.
        limit: Largest number of examples to calibrate with.

    Raises:
        ValueError: There are too few examples to be split.
    """
    count = len(examples)
    if len(purposes) > 1 and count < LEAST:
        raise ValueError(
            f"{count} examples cannot be split into parts for {', '.join(purposes)}: at least {LEAST} are needed"
        )
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    sizes = _sizes(count, purposes, limit)
    parts, start = {}, 0
    for name, size in sizes.items():
        parts[name] = [examples[place] for place in sorted(order[start : start + size])]
        start += size
    return parts


def _sizes(count: int, purposes: Sequence[str], limit: int) -> dict[str, int]:
    """Numbers of examples of each part.

    Where there is something to learn from, it gets what the others leave; else each of the two others gets half, and
    what one of them does not need.
    """
    if len(purposes) == 1:
        (name,) = purposes
        return {name: min(count, (MOST | {"calibration": limit, "training": count})[name])}
    if "training" not in purposes:
        judging = min(MOST["judging"], max(count // 2, count - limit))
        return {"judging": judging, "calibration": min(limit, count - judging)}
    most = MOST | {"calibration": limit}
    others = [name for name in ("judging", "calibration") if name in purposes]
    sizes = {name: min(max(1, int(SHARES[name] * count)), most[name]) for name in others}
    return sizes | {"training": count - sum(sizes.values())}


def split(
    examples: Examples, purposes: Sequence[str], seed: int, limit: int = MOST["calibration"]
) -> dict[str, Examples]:
    """The parts of a file or folder, with their labels; `limit` counts texts, of which a pair holds two.

    Raises:
        ValueError: There are too few examples to be split.
    """
    # The limit counts texts, and an example may hold two.
    size = 2 if isinstance(examples, Texts) and examples.paired else 1
    places = parts_of(range(len(examples)), purposes, seed, max(1, limit // size))
    return {name: examples.at(chosen) for name, chosen in places.items()}
