"""Examples to calibrate, heal and judge models with: texts, images and recordings, as files hold them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from PIL import Image, UnidentifiedImageError

from greenformers.data import _corpus as corpus
from greenformers.data._audio import seconds
from greenformers.data._corpus import Utterance
from greenformers.data._read_texts import NO_NAMES, read_texts
from greenformers.data._tasks import Kind
from greenformers.data._text_files import JUDGED, LEARNT
from greenformers.data._texts import Texts

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
SOUNDS = (".wav", ".flac", ".ogg", ".mp3", ".sph", ".aiff", ".au")

LEAST = 8
"""Fewest examples that are halved."""


class Files(ABC):
    """Examples, each in a file of its own.

    Attributes:
        name: Name of the folder.
    """

    name: str

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def at(self, places: Sequence[int]) -> Self:
        """The examples at some places."""

    @property
    @abstractmethod
    def said(self) -> list[str]:
        """The class of each example, or the words said in it; empty where neither is known."""

    @abstractmethod
    def check(self) -> None:
        """Check that every file can be read.

        Raises:
            ValueError: A file cannot be read; the message names it.
        """


@dataclass(frozen=True)
class Images(Files):
    """Images, each in a file; in folders of their classes, if they have any.

    Attributes:
        name: Name of the folder.
        paths: Paths of the images.
        classes: Name of the class of each image; "" where it has none.
    """

    name: str
    paths: list[Path]
    classes: list[str]

    def __len__(self) -> int:
        return len(self.paths)

    def at(self, places: Sequence[int]) -> Self:
        chosen = [self.paths[place] for place in places], [self.classes[place] for place in places]
        return replace(self, paths=chosen[0], classes=chosen[1])

    @property
    def said(self) -> list[str]:
        return self.classes

    def check(self) -> None:
        for path in self.paths:
            with opened(path):
                pass


@dataclass(frozen=True)
class Sounds(Files):
    """Recordings, and the words said in them or their classes.

    Attributes:
        name: Name of the corpus.
        utterances: Audio and text of each recording; the text may be the name of a class.
    """

    name: str
    utterances: list[Utterance]

    def __len__(self) -> int:
        return len(self.utterances)

    def at(self, places: Sequence[int]) -> Self:
        return replace(self, utterances=[self.utterances[place] for place in places])

    @property
    def said(self) -> list[str]:
        return [utterance.text for utterance in self.utterances]

    def check(self) -> None:
        for path in {utterance.path for utterance in self.utterances}:
            seconds(path)


Examples = Texts | Images | Sounds


def opened(path: Path) -> Image.Image:
    """Open an image and read its header.

    Raises:
        ValueError: The file is no image.
        OSError: The file cannot be read.
    """
    try:
        return Image.open(path)
    except UnidentifiedImageError as error:
        raise ValueError(f"{path} is not an image that can be read") from error


def read_examples(
    path: Path, kind: Kind, enough: int | None = None, *, labelled: bool = True, classes: Mapping[str, int] = NO_NAMES
) -> tuple[Examples, Examples | None]:
    """Examples to train on, and examples to judge by where the path has splits of its own.

    Texts are a file, a folder of files or a data set of the hub, see `read_texts`. Images are a folder with a folder
    for every class, or with images alone. So are recordings; or they are a corpus in any of the layouts of
    `greenformers.data._corpus`. A folder may hold two such folders, named train and test.

    Args:
        path: File, folder or data set.
        kind: Kind of the examples.
        enough: Number of texts that the caller takes at most, see `read_texts`.
        labelled: Whether the labels of texts are read.
        classes: Number of each class of texts, by its name.

    Raises:
        ValueError: Nothing of this kind is there, or a file is damaged.
        OSError: The file cannot be read.
    """
    if kind == "text":
        return read_texts(path, enough, labelled=labelled, classes=classes)
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there")
    if path.is_file() and (kind == "image" or path.suffix not in corpus.SUFFIXES):
        readable = "a folder of images" if kind == "image" else "a folder of recordings, or a manifest"
        raise ValueError(f"{path} is a file: the model reads {readable}")
    if kind == "sound" and (path.is_file() or corpus.layouts_of(path)):
        return _corpus(path)
    inside = {name: path / name for name in (*LEARNT, *JUDGED) if (path / name).is_dir()}
    learnt = next((inside[name] for name in LEARNT if name in inside), None)
    judged = next((inside[name] for name in JUDGED if name in inside), None)
    suffixes = IMAGES if kind == "image" else SOUNDS
    if learnt is not None and any(_labelled(learnt, suffixes)):
        return _folder(learnt, kind), None if judged is None else _folder(judged, kind)
    return _folder(path, kind), None


def halves(examples: Examples, limit: int) -> tuple[Examples, Examples]:
    """Examples to calibrate with and others to judge by, both from all over the file.

    Args:
        examples: Examples in the order of their file.
        limit: Largest number of examples in each half.

    Raises:
        ValueError: Raised where there are fewer than 8 examples.
    """
    count = len(examples)
    if count < LEAST:
        raise ValueError(f"{examples.name} has {count} examples; at least {LEAST} are needed, half of them to judge by")
    take = min(limit, count // 2)
    chosen = [place * count // (2 * take) for place in range(2 * take)]
    return examples.at(chosen[::2]), examples.at(chosen[1::2])


def _labelled(folder: Path, suffixes: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """Files and the names of their classes, the folders they are in; "" for files of the folder itself."""
    classes = sorted(part for part in folder.iterdir() if part.is_dir() and not part.name.startswith("."))
    for place, name in [*((part, part.name) for part in classes), (folder, "")]:
        for path in sorted(place.iterdir()):
            if path.suffix.lower() in suffixes:
                yield path, name


def _folder(folder: Path, kind: Kind) -> Examples:
    files = list(_labelled(folder, IMAGES if kind == "image" else SOUNDS))
    if not files:
        raise ValueError(f"{folder} holds no {'image' if kind == 'image' else 'recording'}, nor folders of them")
    if kind == "image":
        return Images(folder.name, [path for path, _ in files], [name for _, name in files])
    return Sounds(folder.name, [Utterance(path, name) for path, name in files])


def _corpus(path: Path) -> tuple[Examples, Examples | None]:
    loaded = corpus.load(path)
    judged = loaded.test or loaded.valid
    learnt = loaded.train or judged
    return Sounds(loaded.name, learnt), Sounds(loaded.name, judged) if judged and loaded.train else None
