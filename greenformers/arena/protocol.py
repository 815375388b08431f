"""The tasks, and how networks are trained on them at each size. Tay et al. 2021, Long Range Arena, arXiv:2011.04006.

At size "paper" lengths, widths, layers, batches, steps and highest learning rates are those of its configuration files,
with these faults corrected:

- a position is padding where the batch was padded, not where its id is 0: black pixels are seen, and mean pooling
  leaves padding out;
- models are validated on a split of their own, never on the test split;
- the warm-up of retrieval is 1,000 steps: 8,000 were more than all of its 5,000.

And with these differences: rates fall by a cosine where the files have the inverse square root of the step; images have
heads of d / H, where the files narrow queries, keys and values to d / 2; both passages of a pair are one sequence,
[CLS] a [SEP] b [SEP], of one network, where the files encode each alone; passages are of WikiText-2.

"small" and "tiny" are two layers of d 64 with mean pooling, the small setting that papers have used since (2 heads,
f 128), on shorter inputs and for fewer steps: of minutes, not days, on one core of a CPU.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from filelock import FileLock

from greenformers.arena.inputs import Inputs, of_images, of_texts
from greenformers.arena.lock import LOCK
from greenformers.data import Labelled, Splits, Text
from greenformers.data import load as load_data
from greenformers.data._kinds import SPLITS


@dataclass(frozen=True)
class Size:
    """Network, inputs and training of a task at one size.

    Attributes:
        length: Longest sequence, special tokens included.
        examples: Most examples to train on, to validate on and to test on; None for all.
        data: Options of the data: of a generator, or `pool`, the side of squares of pixels that become one.
        hidden: Width d.
        layers: Number of layers.
        heads: Number of heads.
        feed_forward: Width f of the feed-forward blocks.
        pooling: Pooling of a sequence into one vector.
        keeps: What attentions keep of full attention that can be told how much: k, window, landmarks, ...
        batch: Examples a step.
        steps: Optimisation steps.
        learning_rate: Highest learning rate, after the warm-up.
        warmup: Steps of linear warm-up.
        weight_decay: Weight decay of AdamW.
        dropout: Dropout after the embedding and each block.
    """

    length: int
    examples: tuple[int, int, int] | None
    data: dict[str, Any]
    batch: int
    steps: int
    hidden: int = 64
    layers: int = 2
    heads: int = 2
    feed_forward: int = 128
    pooling: str = "mean"
    keeps: int = 16
    learning_rate: float = 1e-3
    warmup: int = 30
    weight_decay: float = 0.01
    dropout: float = 0.0


Source = Callable[[Size, Path, Path], Labelled | Splits]


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        title: Name of the task, for people.
        source: Function that reads or draws the data, from a size, the folder of the data set and that of drawn data.
        tokenizer: Kind of tokenizer.
        masked: Share of the tokens that self-pretraining masks. Amos 2023, arXiv:2310.02980.
        sizes: Sizes, by name.
        position: Position encoding.
        folder: Name of the folder of real data; None where the data are drawn.
        root: Whether the first token, the root operator, tells more than the commonest class.
    """

    title: str
    source: Source
    tokenizer: str
    masked: float
    sizes: dict[str, Size] = field(repr=False)
    position: str = "sinusoidal"
    folder: str | None = None
    root: bool = False

    @property
    def pads(self) -> bool:
        """Whether sequences differ in length, and batches are padded."""
        return self.position == "sinusoidal"

    def check(self, data: Path | None) -> None:
        """Check that the real data are there, if the task has any.

        Raises:
            ValueError: They need a folder and none is given.
            OSError: The folder does not hold theirs.
        """
        if self.folder is None:
            return
        if data is None:
            raise ValueError(f"data must be the folder that holds the folder {self.folder}, got none")
        if not (data / self.folder).is_dir():
            raise FileNotFoundError(f"data must be the folder that holds the folder {self.folder}; {data} does not")

    def inputs(self, size: Size, data: Path | None, drawn: Path, limit: int | None = None) -> Inputs:
        """The sequences and labels of all splits.

        Args:
            size: Size of the inputs.
            data: Folder of the folders of real data.
            drawn: Folder that drawn data are kept in.
            limit: Most examples of each split, in place of those of the size where these are more.

        Raises:
            ValueError: The data need a folder and there is none, or a file is damaged.
            OSError: A folder or file is missing, or cannot be written.
        """
        self.check(data)
        most = [size.examples[at] if size.examples else None for at in range(3)]
        most = [min(given) if (given := [x for x in (own, limit) if x is not None]) else None for own in most]
        source = self.source(size, (data or drawn) / (self.folder or ""), drawn)
        chosen = dict(zip(SPLITS, most, strict=True))
        if isinstance(source, Splits):
            return of_images(source, self.tokenizer, size.length, chosen)
        return of_texts(source, self.tokenizer, size.length, chosen)


def drawn_folder(name: str, size: Size, drawn: Path) -> Path:
    """The folder of what a generator draws with the options of a size, which its name tells."""
    options = {**size.data, **_numbers(size)}
    return drawn / "-".join([name, *(f"{key}-{value}" for key, value in options.items())])


def _drawn(name: str, size: Size, drawn: Path) -> Any:
    """The data that a generator draws with the options of a size: from the disk, where they were drawn before."""
    source = import_module(f"greenformers.data.{name}")
    folder, options = drawn_folder(name, size, drawn), {**size.data, **_numbers(size)}
    drawn.mkdir(parents=True, exist_ok=True)
    with FileLock(drawn / LOCK):  # one process draws, others that work on the same grid wait for it
        if not folder.is_dir():
            # Renamed when all of it is written: a draw that was stopped is drawn again.
            with TemporaryDirectory(dir=drawn) as temporary:
                whole = Path(temporary) / "data"
                source.write(whole, source.generate(**options))
                whole.rename(folder)
    return source.load(folder)


def _listops(size: Size, _: Path, drawn: Path) -> Labelled:
    return _drawn("listops", size, drawn)


def _text(_size: Size, folder: Path, _: Path) -> Labelled:
    reviews = load_data("imdb", folder)
    assert isinstance(reviews, Labelled)
    return reviews


def _retrieval(size: Size, folder: Path, _: Path) -> Labelled:
    text = load_data("wikitext2", folder)
    assert isinstance(text, Text)
    source = import_module("greenformers.data.same_article")
    return source.generate(text, **size.data, **_numbers(size))


def _pixels(size: Size, folder: Path, _: Path) -> Splits:
    photographs = load_data("cifar10_gray", folder, pool=size.data.get("pool", 1))
    assert isinstance(photographs, Splits)
    return photographs


def _pathfinder(size: Size, _: Path, drawn: Path) -> Splits:
    return _drawn("pathfinder", size, drawn)


def _path_x(size: Size, _: Path, drawn: Path) -> Splits:
    return _drawn("path_x", size, drawn)


def _numbers(size: Size) -> dict[str, int]:
    """Numbers of examples to draw, by split."""
    return dict(zip(SPLITS, size.examples or (), strict=False))


_TEXTS: dict[str, Any] = {"weight_decay": 0.1, "dropout": 0.1, "pooling": "cls", "keeps": 128, "layers": 4}
_PATHS: dict[str, Any] = {"hidden": 32, "feed_forward": 32, "keeps": 128, "dropout": 0.1, "learning_rate": 1e-3}
_SMALL_PATHS: dict[str, Any] = {"hidden": 32, "feed_forward": 64}

TASKS: dict[str, Task] = {
    "listops": Task("ListOps", _listops, "words", 0.10, {
        "tiny": Size(128, (8_000, 400, 1_000), {"shortest": 32, "longest": 126}, 32, 300),
        "small": Size(256, (20_000, 500, 2_000), {"shortest": 64, "longest": 254}, 32, 2_000, warmup=200),
        "paper": Size(
            2_001, (96_000, 2_000, 2_000), {"shortest": 501, "longest": 1_999}, 32, 5_000, hidden=512, heads=8,
            feed_forward=1_024, learning_rate=0.05 / 1_000**0.5, warmup=1_000, **_TEXTS,
        ),
    }, root=True),
    "text": Task("Text, bytes of IMDB", _text, "bytes", 0.15, {
        "tiny": Size(256, (25_000, 400, 1_000), {}, 16, 300),
        "small": Size(512, (25_000, 500, 2_000), {}, 16, 2_000, warmup=200),
        "paper": Size(
            1_000, None, {}, 32, 20_000, hidden=256, heads=4, feed_forward=1_024, learning_rate=0.05 / 8_000**0.5,
            warmup=8_000, **_TEXTS,
        ),
    }, folder="imdb"),
    "retrieval": Task("Retrieval, pairs of passages", _retrieval, "bytes", 0.15, {
        "tiny": Size(255, (4_000, 400, 1_000), {"length": 126}, 16, 300),
        "small": Size(511, (10_000, 500, 2_000), {"length": 254}, 16, 2_000, warmup=200),
        "paper": Size(
            8_003, (147_000, 18_000, 17_000), {"length": 4_000}, 32, 5_000, hidden=128, heads=4, feed_forward=512,
            learning_rate=0.05 / 1_000**0.5, warmup=1_000, **_TEXTS,
        ),
    }, folder="wikitext2"),
    "pixels": Task("Pixels, CIFAR-10 in grey", _pixels, "bytes", 0.50, {
        "tiny": Size(257, (45_000, 400, 1_000), {"pool": 2}, 16, 300),
        "small": Size(257, (45_000, 500, 2_000), {"pool": 2}, 32, 2_000, warmup=200),
        "paper": Size(
            1_025, None, {}, 256, 35_000, hidden=128, heads=8, feed_forward=128, layers=1, pooling="cls", keeps=128,
            learning_rate=5e-4, warmup=175, weight_decay=0.0, dropout=0.1,
        ),
    }, position="learned", folder="cifar10_gray"),
    "pathfinder": Task("Pathfinder", _pathfinder, "bytes", 0.50, {
        "tiny": Size(1_025, (4_000, 200, 500), {"side": 32, "dashes": 6}, 8, 150, **_SMALL_PATHS),
        "small": Size(1_025, (20_000, 400, 1_000), {"side": 32, "dashes": 6}, 16, 1_000, warmup=100, **_SMALL_PATHS),
        "paper": Size(
            1_025, (160_000, 20_000, 20_000), {"side": 32, "dashes": 14}, 512, 62_400, layers=4, heads=4, warmup=312,
            weight_decay=0.0, **_PATHS,
        ),
    }, position="learned"),
    "path_x": Task("Path-X", _path_x, "bytes", 0.50, {
        "tiny": Size(16_385, (64, 4, 20), {"dashes": 6}, 2, 8, warmup=2, layers=1, **_SMALL_PATHS),
        "small": Size(16_385, (500, 20, 100), {"dashes": 6}, 2, 40, warmup=4, layers=1, **_SMALL_PATHS),
        "paper": Size(
            16_385, (160_000, 20_000, 20_000), {"dashes": 14}, 64, 500_000, layers=1, heads=2, warmup=2_500,
            weight_decay=0.0, **_PATHS,
        ),
    }, position="learned"),
}  # fmt: skip
"""The tasks, by name."""


def task_of(name: str) -> Task:
    """A task.

    Raises:
        ValueError: There is no such task.
    """
    if name not in TASKS:
        raise ValueError(f"tasks must be of {', '.join(TASKS)}; got {name!r}")
    return TASKS[name]
