"""MNIST, handwritten digits of 28x28 pixels. LeCun, Bottou, Bengio, Haffner 1998, yann.lecun.com/exdb/mnist.

An idx file is a magic number (0, 0, type of the data, number of dimensions), each dimension as a big-endian
uint32, and the data, last dimension fastest. Type 8 is uint8.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from greenformers.data import Split, Splits

CLASSES = 10
SIDE = 28
PEAK = 255
UINT8 = 8
# Images in the larger file. A header that says more is wrong, and nothing is allocated for it.
LARGEST = 60_000


def load(folder: str | Path | None) -> Splits:
    """60,000 training and 10,000 test images of N = 784 pixels; 10 classes. Smaller files are read too.

    Args:
        folder: Folder that holds train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
            t10k-labels-idx1-ubyte, each plain or as .gz; where both are there, the plain one.

    Raises:
        ValueError: No folder is given, or a file has not the format or sizes of MNIST; the message names the file.
        OSError: The folder or a file is missing or cannot be read.
    """
    if folder is None:
        raise ValueError("mnist needs the folder that holds its idx files, got none")
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"mnist needs the folder that holds its idx files, {str(folder)!r} is not a folder")
    return Splits("mnist", CLASSES, _split(folder, "train"), _split(folder, "t10k"))


def _split(folder: Path, part: str) -> Split:
    image_file = _find(folder, f"{part}-images-idx3-ubyte")
    label_file = _find(folder, f"{part}-labels-idx1-ubyte")
    images = _read(image_file, (SIDE, SIDE))
    labels = _read(label_file, ())
    if len(labels) != len(images):
        raise ValueError(f"{label_file.name} must have {len(images)} labels as {image_file.name}, got {len(labels)}")
    if labels.max() >= CLASSES:
        raise ValueError(f"{label_file.name}: labels must be in 0..{CLASSES - 1}, got {labels.max()}")
    return Split(images.flatten(1), labels.long(), PEAK)


def _find(folder: Path, name: str) -> Path:
    for file in (folder / name, folder / f"{name}.gz"):
        if file.is_file():
            return file
    raise FileNotFoundError(f"mnist needs {name} or {name}.gz, neither is in folder {str(folder)!r}")


def _read(path: Path, shape: tuple[int, ...]) -> Tensor:
    """Read the items, each of `shape`, of an idx file; (count, *shape) uint8."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            count = _count(path.name, file.read(8 + 4 * len(shape)), shape)
            size = count * math.prod(shape)
            # One byte more than there should be: shows a longer file, and makes gzip check its sum.
            data = file.read(size + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path.name}: expected a whole gzip file, found a damaged one ({error})") from error
    if len(data) != size:
        bytes_found = "more" if len(data) > size else len(data)
        raise ValueError(f"{path.name}: expected {size} bytes after the header, found {bytes_found}")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(count, *shape)


def _count(name: str, header: bytes, shape: tuple[int, ...]) -> int:
    """Read from the header of an idx file how many items of `shape` it holds."""
    size = 8 + 4 * len(shape)
    if len(header) != size:
        raise ValueError(f"{name}: expected a header of {size} bytes, found {len(header)}")
    magic = bytes((0, 0, UINT8, 1 + len(shape)))
    if header[:4] != magic:
        raise ValueError(f"{name}: expected magic number 0x{magic.hex()}, found 0x{header[:4].hex()}")
    count, *size_found = struct.unpack(f">{1 + len(shape)}I", header[4:])
    if tuple(size_found) != shape:
        raise ValueError(
            f"{name}: expected images of {'x'.join(map(str, shape))}, found {'x'.join(map(str, size_found))}"
        )
    if not 1 <= count <= LARGEST:
        raise ValueError(f"{name}: number of items must be in 1..{LARGEST}, found {count}")
    return count
