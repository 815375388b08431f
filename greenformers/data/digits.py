"""Handwritten digits, 8x8. Alpaydin and Kaynak 1998, test part of UCI Optdigits (DOI 10.24432/C50P49, CC BY 4.0).

`digits.txt` holds an image a line: 64 pixels from 0 to g, which is 16, a space and the digit; test images come last.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
import torch

from greenformers.data import Split, Splits

CLASSES = 10
PEAK = 16  # a pixel counts the ink dots of a 4x4 square
PIXELS = 64
TEST = 360


def load(folder: str | Path | None = None) -> Splits:
    """1,437 training and 360 test images of N = 64 pixels; 10 classes.

    The split is stratified and always the same one, whatever seed a run has: the data set comes without a
    split, and scores of different seeds are only comparable on the same test images.

    Raises:
        ValueError: A folder is given, although there are no files to read.
    """
    if folder is not None:
        raise ValueError(f"digits comes with the package and takes no folder, got {str(folder)!r}")
    lines = (files("greenformers.data") / "digits.txt").read_text().splitlines()
    pixels = torch.from_numpy(np.array([[int(pixel, PEAK + 1) for pixel in line[:PIXELS]] for line in lines], np.uint8))
    labels = torch.tensor([int(line[PIXELS:]) for line in lines])
    train = Split(pixels[:-TEST], labels[:-TEST], PEAK)
    test = Split(pixels[-TEST:], labels[-TEST:], PEAK)
    return Splits("digits", CLASSES, train, test)
