"""CIFAR-10 in grey, small photographs of ten kinds of things. Krizhevsky 2009, Learning Multiple Layers of Features.

As in Long Range Arena (Tay et al. 2021, arXiv:2011.04006): a photograph is a sequence of its 32x32 pixels, each the
luminance 0.299 red + 0.587 green + 0.114 blue (ITU-R BT.601), 0..255.
"""

from __future__ import annotations

from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch

from greenformers.data import Split, Splits

CLASSES = 10
SIDE = 32
PEAK = 255
HELD_OUT = 10
ARCHIVE = "cifar10_gray.npz"
BATCHES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = "test_batch.bin"
RECORD = 1 + 3 * SIDE * SIDE  # a label, then the pixels in red, in green and in blue


def load(folder: str | Path | None) -> Splits:
    """45,000 / 5,000 / 10,000 images of N = 1,024 pixels; 10 classes. Smaller files are read too.

    The data set has no validation split: the 10th, 20th, ... training images of each class, in the order of the files,
    become it, whatever seed a run has.

    Args:
        folder: Folder that holds cifar10_gray.npz, with x_train and x_test (n, 32, 32) and y_train and y_test (n,),
            uint8; or the published binary version, data_batch_1.bin to data_batch_5.bin and test_batch.bin.

    Raises:
        ValueError: No folder is given, or a file has another form; the message names the file.
        OSError: The folder or a file is missing or cannot be read.
    """
    if folder is None:
        raise ValueError("cifar10_gray needs the folder that holds its files, got none")
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"cifar10_gray needs the folder that holds its files, {str(folder)!r} is not a folder")
    parts = _archive(folder / ARCHIVE) if (folder / ARCHIVE).is_file() else _binary(folder)
    train, test = (Split(torch.from_numpy(x).flatten(1), torch.from_numpy(y).long(), PEAK) for x, y in parts)
    held = _held_out(train.labels)
    valid = Split(train.pixels[held], train.labels[held], PEAK)
    return Splits("cifar10_gray", CLASSES, Split(train.pixels[~held], train.labels[~held], PEAK), test, valid)


def _held_out(labels: torch.Tensor) -> torch.Tensor:
    """Which images (n,) are every tenth of their class."""
    one_hot = torch.nn.functional.one_hot(labels, CLASSES)
    rank = one_hot.cumsum(0).gather(1, labels[:, None])[:, 0]
    return rank % HELD_OUT == 0


def _archive(path: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """Images and labels to train and to test with, of the .npz."""
    try:
        # numpy leaves a file open that is no archive, unless it was opened here; of a lone array it makes no archive.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            parts = [(archive[f"x_{part}"], archive[f"y_{part}"]) for part in ("train", "test")]
    except (BadZipFile, EOFError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path.name}: expected x_train, y_train, x_test and y_test, found a damaged file ({error})"
        ) from error
    for images, labels in parts:
        if images.dtype != np.uint8 or images.shape[1:] != (SIDE, SIDE) or labels.shape != images.shape[:1]:
            raise ValueError(
                f"{path.name}: expected uint8 images (n, {SIDE}, {SIDE}) and labels (n,), found {images.dtype} "
                f"{images.shape} and {labels.shape}"
            )
        _check(path.name, labels)
    return parts


def _binary(folder: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """Images and labels to train and to test with, of the published files."""
    missing = [name for name in (*BATCHES, TEST) if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"cifar10_gray needs {ARCHIVE}, or {BATCHES[0]} to {BATCHES[-1]} and {TEST}; "
            f"{missing[0]} is not in folder {str(folder)!r}"
        )
    train = [_records(folder / name) for name in BATCHES]
    images, labels = (np.concatenate(arrays) for arrays in zip(*train, strict=True))
    return [(images, labels), _records(folder / TEST)]


def _records(path: Path) -> tuple[np.ndarray, np.ndarray]:
    data = np.fromfile(path, np.uint8)
    if not len(data) or len(data) % RECORD:
        raise ValueError(f"{path.name}: expected records of {RECORD} bytes, found {len(data)} bytes")
    records = data.reshape(-1, RECORD)
    labels = records[:, 0]
    _check(path.name, labels)
    red, green, blue = records[:, 1:].reshape(-1, 3, SIDE, SIDE).astype(np.float32).transpose(1, 0, 2, 3)
    return (0.299 * red + 0.587 * green + 0.114 * blue).round().astype(np.uint8), labels


def _check(name: str, labels: np.ndarray) -> None:
    if not len(labels) or labels.max() >= CLASSES:
        raise ValueError(f"{name}: labels must be in 0..{CLASSES - 1}, found {labels.max() if len(labels) else 'none'}")
