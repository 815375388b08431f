"""Data sets, one a file; `load(name, ...)` finds them by file name.

An image of side S is a sequence of N = S * S pixels, row by row; the model itself puts [CLS] in front of it. Text stays
text: `train_tokenizer` makes the tokenizer that turns it into ids. A module here is one data set and has a public
function, `load(folder) -> Splits` for images, `load(folder, dataset)` for text, which gives Text, Pairs, Summaries,
Labelled or Tagged. One whose examples are drawn has `generate` too, and `write(folder, data)` where its `load` reads
files of its own.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import get_type_hints

from greenformers._registry import files
from greenformers.data._audio import read as read_audio
from greenformers.data._draw import drawn
from greenformers.data._images import Split, Splits, pooled
from greenformers.data._kinds import Document, Examples, Labelled, Pairs, Sentences, Summaries, Tagged, Text
from greenformers.data._tokenizer import KINDS as TOKENIZERS
from greenformers.data._tokenizer import train_tokenizer

__all__ = [
    "TOKENIZERS",
    "Document",
    "Examples",
    "Labelled",
    "Pairs",
    "Sentences",
    "Split",
    "Splits",
    "Summaries",
    "Tagged",
    "Text",
    "load",
    "load_images",
    "names",
    "read_audio",
    "train_tokenizer",
]

SEEDS = 2**32  # what transformers.set_seed accepts


def names() -> list[str]:
    """Every data set of this folder."""
    return files(__path__)


def load(
    name: str,
    folder: str | Path | None = None,
    limit: int | None = None,
    pool: int = 1,
    seed: int = 0,
    dataset: str | None = None,
) -> Splits | Text | Pairs | Summaries | Labelled | Tagged:
    """Load a data set, from `folder` unless it comes with a library. Only a `dataset` may be downloaded.

    Args:
        name: Name of the data set, one of `names()`.
        folder: Folder that holds the files of the data set.
        limit: Most examples to take of each split; at least the number of classes, None for all.
            They are drawn in the proportions of the classes and stay in their order; with the same seed a
            smaller draw is part of a larger one. Of running text, the first so many lines of each split.
        pool: Side of the square of pixels averaged into one; divides the side of the image. 1 for text.
        seed: Seed of the draw, 0..2**32 - 1.
        dataset: For text, instead of a folder: what `datasets.load_dataset` takes, a name on the Hugging Face hub
            or a local folder of parquet or jsonl files; a configuration follows a colon.

    Raises:
        ValueError: An argument is out of its range, or a file is damaged.
        OSError: The folder, a file or the dataset is missing or cannot be read.
    """
    _check(name, seed)
    if _kind(name) is Splits:
        if dataset is not None:
            raise ValueError(f"{name} is images and takes no dataset, got {dataset!r}")
        return load_images(name, folder, limit, pool, seed)
    if pool != 1:
        raise ValueError(f"pool is for images, {name} is text: pool must be 1, got {pool}")
    return drawn(import_module(f"{__name__}.{name}").load(folder, dataset), limit, seed)


def load_images(
    name: str, folder: str | Path | None = None, limit: int | None = None, pool: int = 1, seed: int = 0
) -> Splits:
    """Load a data set of images, as `load` does.

    Raises:
        ValueError: As in `load`; or the data set is text.
        OSError: As in `load`.
    """
    _check(name, seed)
    if _kind(name) is not Splits:
        images = [candidate for candidate in names() if _kind(candidate) is Splits]
        raise ValueError(f"data set {name!r} is text; images are needed here: one of {', '.join(images)}")
    return pooled(drawn(import_module(f"{__name__}.{name}").load(folder), limit, seed), pool)


def _check(name: str, seed: int) -> None:
    if name not in names():
        raise ValueError(f"data set must be one of {', '.join(names())}, got {name!r}")
    if not 0 <= seed < SEEDS:
        raise ValueError(f"seed must be in 0..{SEEDS - 1}, got {seed}")


def _kind(name: str) -> type:
    """The class that a data set's `load` is annotated to return, known before anything is read."""
    return get_type_hints(import_module(f"{__name__}.{name}").load)["return"]
