"""Handwritten digits, 8x8. Alpaydin and Kaynak 1998, test part of UCI Optdigits, embedded in scikit-learn."""

from __future__ import annotations

from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from greenformers.data import Split, Splits

CLASSES = 10
PEAK = 16  # a pixel counts the ink dots of a 4x4 square
TEST = 360


def load(folder: str | Path | None = None) -> Splits:
    """1,437 training and 360 test images of N = 64 pixels; 10 classes.

    The split is stratified and always the same one, whatever seed a run has: the data set comes without a
    split, and scores of different seeds are only comparable on the same test images.

    Raises:
        ValueError: A folder is given, although there are no files to read.
    """
    if folder is not None:
        raise ValueError(f"digits comes with scikit-learn and takes no folder, got {str(folder)!r}")
    pixels, labels = load_digits(return_X_y=True)  # (1797, 64) float64, (1797,) int64
    train_pixels, test_pixels, train_labels, test_labels = train_test_split(
        pixels.astype("uint8"), labels, test_size=TEST, stratify=labels, random_state=0
    )
    train = Split(torch.from_numpy(train_pixels), torch.from_numpy(train_labels), PEAK)
    test = Split(torch.from_numpy(test_pixels), torch.from_numpy(test_labels), PEAK)
    return Splits("digits", CLASSES, train, test)
