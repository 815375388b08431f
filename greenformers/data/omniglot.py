"""Omniglot, handwritten characters of many alphabets, 20 drawings of each. Lake, Salakhutdinov, Tenenbaum 2015.

Science 350(6266), "Human-level concept learning through probabilistic program induction". As in few-shot learning
(Vinyals 2016, arXiv:1606.04080, 4.1), a drawing of 105x105 pixels is reduced to 28x28, and in training each character
turned by 90, 180 and 270 degrees is a character of its own. Ink is 1, paper 0.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from greenformers.data import Split, Splits

SIDE, DRAWN, PEAK = 28, 105, 255
DRAWINGS = 20
ARCHIVES = (
    ("images_background.zip", "images_evaluation.zip"),
    ("images_background_small1.zip", "images_background_small2.zip"),
)
"""Sets of characters, the one to learn from and the other to test on; the first pair that is there is read."""
DRAWING = re.compile(r"[^/]+/(?P<character>[^/]+/[^/]+)/\d+_(?P<drawer>\d\d)\.png")
LARGEST = 2**20  # bytes of a drawing once unpacked; those published have some hundred
VALID, TEST = (17, 18), (19, 20)

# Share of a row of the drawing (105) in a row of the image (28), which is 3.75 rows high.
_EDGES = np.arange(SIDE + 1)[:, None] * (DRAWN / SIDE) - np.arange(DRAWN)
AREAS = np.diff(_EDGES.clip(0, 1), axis=0) * (SIDE / DRAWN)


def load(folder: str | Path | None) -> Splits:
    """Classification of the characters of both sets: 16 / 2 / 2 drawings of each of 292 (or 1,623), N = 784 pixels.

    The last of the 20 people who drew each character are those of the test. For episodes of characters that were not
    learnt, see `sets`.

    Args:
        folder: Folder that holds images_background_small1.zip and images_background_small2.zip, or the whole
            images_background.zip and images_evaluation.zip.

    Raises:
        ValueError: No folder is given, or a file has another form; the message names the file.
        OSError: The folder or a file is missing or cannot be read.
    """
    first, second = _parts(folder)
    classes = int(first.labels.max()) + 1
    pixels, labels = torch.cat([first.pixels, second.pixels]), torch.cat([first.labels, second.labels + classes])
    drawer = torch.arange(len(labels)) % DRAWINGS + 1
    parts = [torch.isin(drawer, torch.tensor(drawers)) for drawers in (VALID, TEST)]
    valid, test, train = (Split(pixels[part], labels[part], PEAK) for part in (*parts, ~(parts[0] | parts[1])))
    return Splits("omniglot", int(labels.max()) + 1, train, test, valid)


def sets(folder: str | Path | None) -> tuple[Split, Split]:
    """Two sets of characters of different alphabets, to learn episodes from and to test on; each has labels from 0.

    Args:
        folder: As in `load`.

    Returns:
        Drawings of 136 and 156 characters, or of 964 and 659; the 20 of a character in the order of who drew them.

    Raises:
        ValueError: As in `load`.
        OSError: As in `load`.
    """
    return _parts(folder)


def turned(split: Split) -> Split:
    """Every character, and it turned by 90, 180 and 270 degrees as three more: four times the classes and drawings."""
    classes = int(split.labels.max()) + 1
    images = split.pixels.unflatten(1, (SIDE, SIDE))
    pixels = torch.cat([images.rot90(quarter, (1, 2)).flatten(1) for quarter in range(4)])
    return Split(pixels, torch.cat([split.labels + quarter * classes for quarter in range(4)]), split.peak)


def _parts(folder: str | Path | None) -> tuple[Split, Split]:
    if folder is None:
        raise ValueError("omniglot needs the folder that holds its archives, got none")
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"omniglot needs the folder that holds its archives, {str(folder)!r} is not a folder")
    for names in ARCHIVES:
        if all((folder / name).is_file() for name in names):
            first, second = (_read(folder / name) for name in names)
            return first, second
    pairs = ", or ".join(" and ".join(names) for names in ARCHIVES)
    raise FileNotFoundError(f"omniglot needs {pairs}; neither pair is in folder {str(folder)!r}")


def _read(path: Path) -> Split:
    """The drawings of an archive, by character and who drew it."""
    try:
        with ZipFile(path) as archive:
            drawings: dict[tuple[str, str], Tensor] = {}
            for entry in archive.infolist():
                if match := DRAWING.fullmatch(entry.filename):
                    if entry.file_size > LARGEST:
                        raise ValueError(f"a drawing of {entry.file_size} bytes, at most {LARGEST} are read")
                    with archive.open(entry) as file:
                        drawings[match["character"], match["drawer"]] = _reduced(Image.open(file))
    except (BadZipFile, EOFError, OSError, SyntaxError, ValueError, zlib.error) as error:
        # Pillow tells of damage by each of these.
        raise ValueError(f"{path.name}: expected drawings of characters, found a damaged file ({error})") from error
    characters = sorted({character for character, _ in drawings})
    for character in characters:
        count = sum(name == character for name, _ in drawings)
        if count != DRAWINGS:
            raise ValueError(f"{path.name}: expected {DRAWINGS} drawings of {character}, found {count}")
    if not characters:
        raise ValueError(f"{path.name}: expected drawings as set/alphabet/character/0000_01.png, found none")
    pixels = torch.stack([drawings[key] for key in sorted(drawings)])
    return Split(pixels.flatten(1), torch.arange(len(characters)).repeat_interleave(DRAWINGS), PEAK)


def _reduced(drawing: Image.Image) -> Tensor:
    """A drawing of black ink on white as the mean ink of 28x28 areas, (28, 28) uint8."""
    if drawing.size != (DRAWN, DRAWN):
        width, height = drawing.size
        raise ValueError(f"a drawing of {width}x{height} pixels, expected {DRAWN}x{DRAWN}")
    ink = 1 - np.asarray(drawing.convert("L"), np.float64) / PEAK
    return torch.from_numpy((PEAK * (AREAS @ ink @ AREAS.T)).round().astype(np.uint8))
