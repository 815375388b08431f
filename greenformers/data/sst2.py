"""SST-2, is a sentence of a film review positive? Socher et al. 2013, Stanford Sentiment Treebank; task of GLUE."""

from __future__ import annotations

from pathlib import Path

from greenformers.data._columns import fetch_labelled
from greenformers.data._kinds import Labelled
from greenformers.data._labels import class_reader
from greenformers.data._source import choose
from greenformers.data._table import read_tables

CLASSES = ("negative", "positive")


def load(folder: str | Path | None, dataset: str | None = None) -> Labelled:
    """6,920 / 872 / 1,821 sentences; GLUE's form has 67,349 phrases to train on, and withholds the test's labels.

    Args:
        folder: Folder that holds train.tsv, dev.tsv and test.tsv, or some of them, each plain, .gz or .xz: sentence and
            label without a header, or GLUE's tables with one.
        dataset: Data set of the `datasets` library, used instead of a folder; on the hub "stanfordnlp/sst2".

    Raises:
        ValueError: Both a folder and a dataset are given, or neither; or a file is damaged.
        OSError: The folder, every file or the dataset is missing, or cannot be read.
    """
    source, read_label = choose("sst2", folder, dataset), class_reader(CLASSES)
    if isinstance(source, str):
        return fetch_labelled("sst2", CLASSES, source, 1, read_label)
    return read_tables("sst2", CLASSES, source, ("sentence",), "label", read_label, header=("sentence", "label"))
