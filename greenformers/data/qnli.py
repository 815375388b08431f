"""QNLI, does a sentence answer a question? Wang et al. 2018, GLUE, arXiv:1804.07461; from SQuAD 1.1."""

from __future__ import annotations

from pathlib import Path

from greenformers.data._columns import fetch_labelled
from greenformers.data._kinds import Labelled
from greenformers.data._labels import class_reader
from greenformers.data._source import choose
from greenformers.data._table import read_tables

CLASSES = ("entailment", "not_entailment")


def load(folder: str | Path | None, dataset: str | None = None) -> Labelled:
    """104,743 / 5,463 / 0 pairs of question and sentence; GLUE withholds the labels of the test.

    Args:
        folder: Folder that holds GLUE's train.tsv and dev.tsv, or one of them, each plain, .gz or .xz.
        dataset: Data set of the `datasets` library, used instead of a folder; on the hub "nyu-mll/glue:qnli".

    Raises:
        ValueError: Both a folder and a dataset are given, or neither; or a file is damaged.
        OSError: The folder, every file or the dataset is missing, or cannot be read.
    """
    source, read_label = choose("qnli", folder, dataset), class_reader(CLASSES)
    if isinstance(source, str):
        return fetch_labelled("qnli", CLASSES, source, 2, read_label)
    return read_tables("qnli", CLASSES, source, ("question", "sentence"), "label", read_label)
