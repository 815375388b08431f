"""Files of pictures of dashed paths, see `_paths.py`: an array of images and one of labels for each split."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from greenformers.data._images import Split, Splits
from greenformers.data._paths import CLASSES, PARTS, PEAK


def write(folder: str | Path, data: Splits) -> None:
    """Write pictures as the files that `load` reads; the folder is made where there is none.

    Raises:
        OSError: A file cannot be written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        split: Split = getattr(data, part)
        side = math.isqrt(data.length)
        np.save(folder / _file(part, "images"), split.pixels.unflatten(1, (side, side)).numpy())
        np.save(folder / _file(part, "labels"), split.labels.numpy().astype(np.uint8))


def _file(part: str, kind: str) -> str:
    """Name of the file of a split's images or labels."""
    return f"{part}_{kind}.npy"


def read(name: str, folder: str | Path | None, sides: Sequence[int]) -> Splits:
    """Read pictures; they stay on the disk until they are asked for.

    Args:
        name: Name of the data set.
        folder: Folder of the files.
        sides: Sides that pictures may have.

    Raises:
        ValueError: No folder is given, or a file has not the form that `write` gives it; the message names the file.
        OSError: The folder or a file is missing or cannot be read.
    """
    if folder is None:
        raise ValueError(f"{name} needs the folder of the pictures that its generate and write make, got none")
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{name} needs the folder of the pictures that its generate and write make, {str(folder)!r} is not a folder"
        )
    train, valid, test = (_read_split(folder, part, sides) for part in PARTS)
    for part, split in (("valid", valid), ("test", test)):
        if split.pixels.shape[1] != train.pixels.shape[1]:
            raise ValueError(
                f"{part}_images.npy: expected pictures of {train.pixels.shape[1]} pixels as in train_images.npy, "
                f"found {split.pixels.shape[1]}"
            )
    return Splits(name, CLASSES, train, test, valid)


def _read_split(folder: Path, part: str, sides: Sequence[int]) -> Split:
    pixels, labels = _array(folder / _file(part, "images"), 3), _array(folder / _file(part, "labels"), 1)
    if pixels.shape[1] != pixels.shape[2] or pixels.shape[1] not in sides:
        shapes = " or ".join(f"{side}x{side}" for side in sides)
        raise ValueError(
            f"{part}_images.npy: expected pictures of {shapes}, found {'x'.join(map(str, pixels.shape[1:]))}"
        )
    if len(labels) != len(pixels) or not len(labels):
        raise ValueError(f"{part}_labels.npy: expected a label a picture, {len(pixels)}, found {len(labels)}")
    if labels.max() >= CLASSES:
        raise ValueError(f"{part}_labels.npy: labels must be in 0..{CLASSES - 1}, found {labels.max()}")
    return Split(torch.from_numpy(pixels).flatten(1), torch.from_numpy(labels).long(), PEAK)


def _array(path: Path, dimensions: int) -> np.ndarray:
    """An array of uint8 that stays in its file; what is written to it does not reach the file."""
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path.name}: expected an array as numpy saves it, found another file ({error})") from error
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path.name}: expected an array as numpy saves it, found several")
    if array.dtype != np.uint8 or array.ndim != dimensions:
        raise ValueError(f"{path.name}: expected uint8 in {dimensions} dimensions, found {array.dtype} in {array.ndim}")
    return array
