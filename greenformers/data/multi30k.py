"""Multi30k, captions of images in English and German. Elliott, Frank, Sima'an, Specia 2016, arXiv:1605.00459."""

from __future__ import annotations

from pathlib import Path

from greenformers.data._columns import fetch_pairs
from greenformers.data._files import need, read_lines
from greenformers.data._kinds import Pairs
from greenformers.data._source import choose

SOURCE, TARGET = "en", "de"
PARTS = ("train", "val", "test_2016_flickr")


def load(folder: str | Path | None, dataset: str | None = None) -> Pairs:
    """29,000 / 1,014 / 1,000 pairs, English to German; the test is that of 2016, test_2016_flickr.

    Args:
        folder: Folder that holds train, val and test_2016_flickr, each as .en and as .de, and each of these plain, .gz
            or .xz.
        dataset: Data set of the `datasets` library, used instead of a folder; on the hub "bentrevett/multi30k".

    Raises:
        ValueError: Both a folder and a dataset are given, or neither; or a file is damaged, or has another number of
            lines than its translation.
        OSError: The folder, a file or the dataset is missing or cannot be read.
    """
    source = choose("multi30k", folder, dataset)
    if isinstance(source, str):
        return fetch_pairs("multi30k", SOURCE, TARGET, source)
    train, valid, test = (_pairs(source, part) for part in PARTS)
    return Pairs("multi30k", SOURCE, TARGET, train, valid, test)


def _pairs(folder: Path, part: str) -> list[tuple[str, str]]:
    ours, theirs = need(folder, f"{part}.{SOURCE}"), need(folder, f"{part}.{TARGET}")
    source, target = read_lines(ours), read_lines(theirs)
    if len(source) != len(target):
        raise ValueError(f"{theirs.name} must have {len(source)} lines as {ours.name}, found {len(target)}")
    return list(zip(source, target, strict=True))
