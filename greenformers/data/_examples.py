"""What models are calibrated, healed and judged with: texts, images, recordings, as files hold them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from PIL import Image, UnidentifiedImageError

from greenformers.data import _corpus as corpus
from greenformers.data._audio import seconds
from greenformers.data._corpus import Utterance
from greenformers.data._tasks import Kind
from greenformers.data._texts import Texts, read_texts

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
SOUNDS = (".wav", ".flac", ".ogg", ".mp3", ".sph", ".aiff", ".au")
LEARNT, JUDGED = ("train", "training"), ("test", "valid", "validation", "val", "dev")
"""Names of folders of examples to learn from and to judge by."""


class Files(ABC):
    """Examples of which each is in a file.

    Attributes:
        name: Of the folder.
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
        """Of each example its class, or what is said in it; empty where that is not known."""

    @abstractmethod
    def check(self) -> None:
        """See that every file can be read.

        Raises:
            ValueError: One cannot; the message names it.
        """


@dataclass(frozen=True)
class Images(Files):
    """Images, each in a file; in folders of their classes, if they have any.

    Attributes:
        name: Of the folder.
        paths: Of the images.
        classes: Of each image the name of its class; "" where it has none.
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
    """Recordings, and what is said in them; or their classes.

    Attributes:
        name: Of the corpus.
        utterances: Audio and text of each.
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
    """An image whose header has been read.

    Raises:
        ValueError: It is none.
        OSError: It cannot be read.
    """
    try:
        return Image.open(path)
    except UnidentifiedImageError as error:
        raise ValueError(f"{path} is not an image that can be read") from error


def read_examples(path: Path, kind: Kind) -> tuple[Examples, Examples | None]:
    """Examples to learn from, and those to judge by where the place has splits of its own.

    Texts are a file, see `read_texts`. Images are a folder with a folder for every class, or with images alone; so are
    recordings, or they are a corpus in any of the layouts of `greenformers.data._corpus`. A folder may hold two such,
    as train and test.

    Raises:
        ValueError: Nothing of this kind is there, or a damaged file.
        OSError: It cannot be read.
    """
    if kind == "text":
        if path.is_dir():
            raise ValueError(f"{path} is a folder: the model reads texts, of a file .txt or .tsv")
        return read_texts(path), None
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there")
    if path.is_file() and (kind == "image" or path.suffix not in corpus.SUFFIXES):
        wanted = "a folder of images" if kind == "image" else "a folder of recordings, or a manifest"
        raise ValueError(f"{path} is a file: the model reads {wanted}")
    if kind == "sound" and (path.is_file() or corpus.layouts_of(path)):
        return _corpus(path)
    inside = {name: path / name for name in (*LEARNT, *JUDGED) if (path / name).is_dir()}
    learnt = next((inside[name] for name in LEARNT if name in inside), None)
    judged = next((inside[name] for name in JUDGED if name in inside), None)
    suffixes = IMAGES if kind == "image" else SOUNDS
    if learnt is not None and any(_labelled(learnt, suffixes)):
        return _folder(learnt, kind), None if judged is None else _folder(judged, kind)
    return _folder(path, kind), None


def _labelled(folder: Path, suffixes: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """Files and the names of their classes: in folders of the folder, or in itself."""
    classes = sorted(part for part in folder.iterdir() if part.is_dir() and not part.name.startswith("."))
    for place, name in [*((part, part.name) for part in classes), (folder, "")]:
        for path in sorted(place.iterdir()):
            if path.suffix.lower() in suffixes:
                yield path, name


def _folder(folder: Path, kind: Kind) -> Examples:
    found = list(_labelled(folder, IMAGES if kind == "image" else SOUNDS))
    if not found:
        raise ValueError(f"{folder} holds no {'image' if kind == 'image' else 'recording'}, nor folders of them")
    if kind == "image":
        return Images(folder.name, [path for path, _ in found], [name for _, name in found])
    return Sounds(folder.name, [Utterance(path, name) for path, name in found])


def _corpus(path: Path) -> tuple[Examples, Examples | None]:
    read = corpus.load(path)
    judged = read.test or read.valid
    learnt = read.train or judged
    return Sounds(read.name, learnt), Sounds(read.name, judged) if judged and read.train else None
