"""STS-B, how alike in meaning are two sentences? Cer et al. 2017, arXiv:1708.00055; task of GLUE."""

from __future__ import annotations

from pathlib import Path

from greenformers.data._columns import fetch_labelled
from greenformers.data._kinds import Labelled
from greenformers.data._labels import score_reader
from greenformers.data._source import choose
from greenformers.data._table import read_tables

LOW, HIGH = 0, 5


def load(folder: str | Path | None, dataset: str | None = None) -> Labelled:
    """5,749 / 1,500 / 1,379 pairs of sentences, with scores from 0, unrelated, to 5, the same.

    Args:
        folder: Folder that holds train.tsv, dev.tsv and test.tsv, or some of them, each plain, .gz or .xz; the header
            names sentence1, sentence2 and score among others, as GLUE's does.
        dataset: Data set of the `datasets` library, used instead of a folder; on the hub "nyu-mll/glue:stsb". Scores
            are taken as they are: a data set that rescaled them to 0..1 stays so.

    Raises:
        ValueError: Both a folder and a dataset are given, or neither; or a file is damaged.
        OSError: The folder, every file or the dataset is missing, or cannot be read.
    """
    source, read_label = choose("stsb", folder, dataset), score_reader(LOW, HIGH)
    if isinstance(source, str):
        return fetch_labelled("stsb", None, source, 2, read_label)
    return read_tables("stsb", None, source, ("sentence1", "sentence2"), "score", read_label)
