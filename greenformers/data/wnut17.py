"""WNUT 2017, rare and emerging names in posts of social media. Derczynski et al. 2017, aclanthology.org/W17-4418."""

from __future__ import annotations

from pathlib import Path

from greenformers.data._columns import fetch_tagged
from greenformers.data._files import find, read_lines
from greenformers.data._kinds import Sentences, Tagged
from greenformers.data._source import choose

ENTITIES = ("corporation", "creative-work", "group", "location", "person", "product")
TAGS = ("O", *(f"{mark}-{entity}" for entity in ENTITIES for mark in "BI"))
FILES = {
    "train": ("wnut17_train.conll", "wnut17train.conll"),
    "valid": ("wnut17_dev.conll", "emerging.dev.conll"),
    "test": ("wnut17_test.conll", "emerging.test.annotated"),
}


def load(folder: str | Path | None, dataset: str | None = None) -> Tagged:
    """3,394 / 1,009 / 1,287 sentences, the words of which are tagged O, B-person, I-person, ...: 6 kinds of entities.

    Args:
        folder: Folder that holds wnut17train.conll, emerging.dev.conll and emerging.test.annotated, or some of them,
            each plain, .gz or .xz; or the same named wnut17_train.conll, wnut17_dev.conll and wnut17_test.conll. A line
            is a word, a tab and its tag; an empty one ends a sentence.
        dataset: Data set of the `datasets` library, used instead of a folder; on the hub "leondz/wnut_17".

    Raises:
        ValueError: Both a folder and a dataset are given, or neither; or a file is damaged.
        OSError: The folder, every file or the dataset is missing, or cannot be read.
    """
    source = choose("wnut17", folder, dataset)
    if isinstance(source, str):
        return fetch_tagged("wnut17", TAGS, source)
    paths = {
        part: next((path for name in names if (path := find(source, name))), None) for part, names in FILES.items()
    }
    if not any(paths.values()):
        raise FileNotFoundError(
            f"wnut17 needs {', '.join(name for names in FILES.values() for name in names)}, or one of these as .gz or "
            f".xz; none is in folder {str(source)!r}"
        )
    splits = {part: Sentences() if path is None else _read(path) for part, path in paths.items()}
    return Tagged("wnut17", TAGS, **splits)


def _read(path: Path) -> Sentences:
    """The sentences of a file."""
    sentences, numbers = Sentences(), {tag: number for number, tag in enumerate(TAGS)}
    ended = True
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            ended = True
            continue
        word, _, tag = line.rpartition("\t")
        if not word.strip() or tag not in numbers:
            raise ValueError(f"{path.name}, line {number}: expected a word, a tab, and one of {', '.join(TAGS)}")
        if ended:
            sentences.words.append([])
            sentences.tags.append([])
            ended = False
        sentences.words[-1].append(word)
        sentences.tags[-1].append(numbers[tag])
    return sentences
