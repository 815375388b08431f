"""Pathfinder, are two discs on the ends of one dashed path? Linsley et al. 2018, arXiv:1805.08315.

Long Range Arena (Tay et al. 2021, arXiv:2011.04006) has pictures of 32x32 pixels with two paths of 14 dashes, and short
ones that distract. The pictures here come from a generator of our own, see `_paths.py`.
"""

from __future__ import annotations

from pathlib import Path

from greenformers.data import Splits
from greenformers.data import _path_files as files
from greenformers.data import _paths as paths
from greenformers.data._path_files import write

__all__ = ["generate", "load", "write"]

SIDES = tuple(paths.GEOMETRIES)


def load(folder: str | Path | None) -> Splits:
    """Pictures of N = 1,024, 4,096 or 16,384 pixels; label 1 where the discs are on one path, else 0.

    Args:
        folder: Folder that `write` has filled: {train,valid,test}_images.npy (n, side, side) and
            {train,valid,test}_labels.npy (n,), uint8.

    Raises:
        ValueError: No folder is given, or a file has another form; the message names the file.
        OSError: The folder or a file is missing or cannot be read.
    """
    return files.read("pathfinder", folder, SIDES)


def generate(
    *,
    side: int = 32,
    dashes: int = 14,
    train: int = 160_000,
    valid: int = 20_000,
    test: int = 20_000,
    seed: int = 0,
) -> Splits:
    """Draw pictures, half of each label; by default as many and as hard as in Long Range Arena.

    Args:
        side: Side of a picture in pixels: 32, 64 or 128.
        dashes: Dashes of a long path, 6..16; the published ones have 6, 9 or, the hardest, 14. A third as many has each
            path that distracts.
        train: Number of pictures to train on, at least 1.
        valid: Number of pictures to validate on, at least 1.
        test: Number of pictures to test on, at least 1.
        seed: Seed of the draw.

    Raises:
        ValueError: An argument is out of its range.
    """
    return paths.generate("pathfinder", side, dashes, (train, valid, test), seed)
