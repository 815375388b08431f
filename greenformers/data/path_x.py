"""Path-X, Pathfinder with pictures of 128x128 pixels. Tay et al. 2021, Long Range Arena, arXiv:2011.04006.

The pictures come from a generator of our own, see `_paths.py`; dashes are finer and turns narrower than at 32x32.
"""

from __future__ import annotations

from pathlib import Path

from greenformers.data import Splits
from greenformers.data import _path_files as files
from greenformers.data import _paths as paths
from greenformers.data._path_files import write

__all__ = ["generate", "load", "write"]

SIDE = 128


def load(folder: str | Path | None) -> Splits:
    """Pictures of N = 16,384 pixels; label 1 where the discs are on one path, else 0.

    Args:
        folder: Folder that `write` has filled, with the files that `pathfinder` has too.

    Raises:
        ValueError: No folder is given, or a file has another form; the message names the file.
        OSError: The folder or a file is missing or cannot be read.
    """
    return files.read("path_x", folder, (SIDE,))


def generate(
    *, dashes: int = 14, train: int = 160_000, valid: int = 20_000, test: int = 20_000, seed: int = 0
) -> Splits:
    """Draw pictures, half of each label; by default as many and as hard as in Long Range Arena. 16 KiB of memory each.

    Args:
        dashes: Dashes of a long path, 6..16.
        train: Number of pictures to train on, at least 1.
        valid: Number of pictures to validate on, at least 1.
        test: Number of pictures to test on, at least 1.
        seed: Seed of the draw.

    Raises:
        ValueError: An argument is out of its range.
    """
    return paths.generate("path_x", SIDE, dashes, (train, valid, test), seed)
