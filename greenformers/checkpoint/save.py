"""Write a compressed network to a folder: weights in safetensors, and a card that says how to load it."""

import glob
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from safetensors.torch import save_model
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from greenformers.changes import kind
from greenformers.changes._narrowed import described as narrowed
from greenformers.changes._recipe import RECIPE, recipe_text
from greenformers.changes._report import CompressionReport
from greenformers.checkpoint.description import STRUCTURE
from greenformers.checkpoint.pooling import check_carried, is_sentence_transformer, know, transformer_in
from greenformers.checkpoint.sentence import MODULES, TOKENIZER, sentence_folder, set_width
from greenformers.checkpoint.structure import CHANGED, mark, structure
from greenformers.checkpoint.trial import try_again
from greenformers.data._pooling import pooling_of
from greenformers.train.checkpoint import share, sync

REPORT = "compression.json"
"""The report of the recipe, beside the weights."""

MARK, EXPORTED = "library_name: greenformers", "tags: [greenformers, exported]"
"""Lines at the head of every card, and of those of exports, by which a folder that may be replaced is recognised."""

SENTENCES = """from sentence_transformers import SentenceTransformer

model = SentenceTransformer("this folder")  # the same pooling and modules as before"""


def save(
    model: nn.Module,
    folder: str | Path,
    report: CompressionReport | None = None,
    card: str = "",
    tokenizer: PreTrainedTokenizerBase | None = None,
    processor: Any = None,
    example: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write a changed network with all that is needed to use it; `greenformers.load` reads it.

    The files are read again and run once before the folder is put in place, see `greenformers.checkpoint.trial`. An
    existing folder is replaced once all is written: a crash leaves the old one or the new one. A SentenceTransformer is
    written with all its modules; a transformer that was read from a folder of sentence-transformers with those of that
    folder.

    Args:
        model: Any network that changes were applied to, or a SentenceTransformer with such a transformer.
        folder: Folder for the files.
        report: Report of `compress`; its tables go on the card, all of it into `compression.json`, its recipe into
            `recipe.toml`.
        card: Further Markdown for the card.
        tokenizer: Tokenizer, saved beside the model; by default that of the folder of sentence-transformers, if the
            model was read from one.
        processor: Image processor, feature extractor or processor of `transformers`, saved beside the model.
        example: Keyword arguments of the call by which the files are tried; by default made from the configuration.

    Returns:
        The folder.

    Raises:
        ValueError: Nothing was changed in the network; the written network is another one, or not finite; or the
            modules of its SentenceTransformer are neither in a folder nor in `model`.
        OSError: The folder cannot be written, or holds something that is no saved network.
    """
    whole: Any = model if is_sentence_transformer(model) else None
    model = model if whole is None else transformer_in(whole)
    described = mark(model)
    if described.empty and report is None and not getattr(model, CHANGED, False):
        raise ValueError("nothing was changed in the network: compress it first")
    know(model)
    if pooling_of(model).in_memory and whole is None:
        raise ValueError("the modules behind this transformer are in no folder: save the SentenceTransformer")
    folder = Path(folder)
    with building(folder) as unfinished:
        if whole is not None:
            whole.save(str(unfinished), create_model_card=False)
        elif isinstance(model, PreTrainedModel):
            model.save_pretrained(unfinished)
            carry_modules(model, unfinished, tokenizer is not None)
        else:
            save_model(model, str(unfinished / "model.safetensors"))
            (unfinished / STRUCTURE).write_text(json.dumps(described.as_dict(), indent=1) + "\n")
        if tokenizer is not None:
            tokenizer.save_pretrained(unfinished)
        if processor is not None:
            processor.save_pretrained(unfinished)
        describe(unfinished, model, report, card)
        try_again(unfinished, model, example)
        if isinstance(model, PreTrainedModel) and (unfinished / MODULES).is_file():
            set_width(unfinished, width_of(model))
            check_carried(unfinished, pooling_of(model), width_of(model))
    return folder


def width_of(model: PreTrainedModel) -> int:
    """The width of the states of a network, which changes may have made smaller."""
    left = next(iter((narrowed(model) or {}).values()), None)
    width: int = model.config.get_text_config().hidden_size if left is None else left["width"]
    return width


def carry_modules(model: PreTrainedModel, out: Path, has_tokenizer: bool) -> None:
    """Copy the modules of sentence-transformers behind a model, if it was read from a folder with such modules.

    Args:
        model: The transformer.
        out: The folder that is being written.
        has_tokenizer: Whether a tokenizer is written there; else that of the folder is copied.

    Raises:
        ValueError: The folder is no longer there.
    """
    pooling = pooling_of(model)
    if pooling.folder is not None:
        modules = sentence_folder(pooling.folder)
        if modules is None:
            raise ValueError(f"{pooling.folder / MODULES} is missing, by which the modules behind the model are read")
        modules.carry(out, pooling.length)
        for pattern in () if has_tokenizer else TOKENIZER:
            for path in modules.transformer.glob(pattern):
                shutil.copyfile(path, out / path.name)


@contextmanager
def building(folder: Path) -> Iterator[Path]:
    """A `with` block with a folder to write to, which takes the place of `folder` at the end; errors remove it.

    Raises:
        FileExistsError: Raised as by `check_target`.
    """
    check_target(folder)
    with beside(folder) as unfinished:
        yield unfinished
        unfinished.chmod(0o755)
        replace(unfinished, folder)


@contextmanager
def beside(folder: Path) -> Iterator[Path]:
    """A `with` block with an empty folder beside another, for what is to take its place; it is removed at the end.

    Each process has a folder of its own; those of killed processes are removed. Where nothing took its place, folders
    that were made around it are removed too.
    """
    start = f".{folder.name}.building-"
    for left in folder.parent.glob(f"{glob.escape(start)}*"):
        owner = left.name.removeprefix(start)
        if owner.isdecimal() and (int(owner) == os.getpid() or not psutil.pid_exists(int(owner))):
            shutil.rmtree(left, ignore_errors=True)  # several processes do so
    around = [parent for parent in folder.parents if not parent.exists()]
    place = folder.with_name(f"{start}{os.getpid()}")
    try:
        place.mkdir(mode=0o700, parents=True)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        for parent in around:
            with suppress(OSError):  # something is in it
                parent.rmdir()


def describe(folder: Path, model: nn.Module, report: CompressionReport | None, card: str = "") -> None:
    """Write the card, and the report and the recipe if there is a report."""
    if report is not None:
        (folder / REPORT).write_text(json.dumps(report.as_dict(), indent=1) + "\n")
        (folder / RECIPE).write_text(recipe_text(step.report.change for step in report.steps), encoding="utf-8")
    pooled = (folder / MODULES).is_file()
    (folder / "README.md").write_text(card_of(model, report, card, pooled))


def check_target(folder: Path) -> None:
    """Check that a folder is missing, empty, or holds a saved network, which may be replaced.

    Raises:
        FileExistsError: It is a file, or holds anything else.
    """
    if folder.exists() and not (folder.is_dir() and (_saved(folder) or not any(folder.iterdir()))):
        raise FileExistsError(f"{folder} exists and holds no compressed network: name another folder")
    check_movable(folder)


def check_movable(folder: Path) -> None:
    """Check that a folder can be put in the place of another.

    Raises:
        FileExistsError: It is the working folder, or where a disk is mounted.
    """
    if folder.exists() and (folder.is_mount() or folder.name in ("", "..")):
        raise FileExistsError(f"{folder} cannot be replaced as a whole: name a folder within it")


def check_place(folder: Path) -> None:
    """Check, before any work begins, that a folder can be written or replaced.

    Raises:
        FileExistsError: Raised as by `check_target`.
        FileNotFoundError: The folder around it is missing.
        OSError: Nothing can be written there.
    """
    check_target(folder)
    if not folder.parent.is_dir():
        raise FileNotFoundError(f"{folder.parent} is no folder: make it, or name another place than {folder}")
    try:
        Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent)).rmdir()
    except OSError as error:
        raise OSError(f"{folder} cannot be written: {error.strerror}") from error


def _saved(folder: Path) -> bool:
    return any(folder.glob("model*.safetensors")) and marked(folder, MARK) and not marked(folder, EXPORTED)


def marked(folder: Path, mark: str) -> bool:
    """Whether a folder has a card with this line at its head."""
    card = folder / "README.md"
    if not card.is_file():
        return False
    with card.open(encoding="utf-8", errors="replace") as file:
        return mark in file.read(200)


def replace(finished: Path, folder: Path) -> None:
    """Put a finished folder in place of another.

    For a moment there is neither, and both lie beside it: a process that is killed then leaves them there.
    """
    for path in finished.rglob("*.safetensors"):
        share(path)
    for path in finished.rglob("*"):
        if path.is_file():
            sync(path)  # a folder that takes the place of another is on the disk
    if folder.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        folder.rename(old / "old")
        try:
            finished.rename(folder)
        except BaseException:
            (old / "old").rename(folder)
            old.rmdir()
            raise
        shutil.rmtree(old)
    else:
        finished.rename(folder)


def discard(folder: Path) -> None:
    """Remove a folder as a whole: killed meanwhile, what is left of it has another name, and goes the next time."""
    rubbish = folder.with_name(f".{folder.name}.removed")
    shutil.rmtree(rubbish, ignore_errors=True)
    with suppress(FileNotFoundError):
        folder.rename(rubbish)
    shutil.rmtree(rubbish, ignore_errors=True)


def card_of(model: nn.Module, report: CompressionReport | None, card: str, pooled: bool = False) -> str:
    """The model card: how to load the model (`pooled`: by sentence-transformers too), its costs, and what was done."""
    name = type(model).__name__
    changes = [kind(name) for name in structure(model).order]
    foreign = not all(change.built_by_the_class for change in changes)
    if not isinstance(model, PreTrainedModel):
        loading = f'import greenformers\n\nmodel = greenformers.load("this folder", into={name}(...))  # the dense one'
    elif foreign:
        loading = (
            "import greenformers  # registers the plug-in, for all that follows\n"
            f"from transformers import {name}\n\n"
            f'model = {name}.from_pretrained("this folder")\n'
            'model = greenformers.load("this folder")  # or this, which does not return a network with missing weights'
        )
    else:
        loading = f'from transformers import {name}\n\nmodel = {name}.from_pretrained("this folder")'
    if pooled:
        loading += f"\n\n{SENTENCES}"
    said = "".join(f"\n- `{change.name()}`: {(change.__doc__ or '').splitlines()[0]}" for change in changes)
    differs = (
        f"What differs from the network that its class builds:\n{said}\n\n`greenformers` must be installed to load it: "
        "without it `transformers` stops, because one weight has a dimension more than it expects."
    )
    own = "It is the network that its class builds of this configuration: nothing else is needed to load it."
    parts = [
        f"---\n{MARK}\ntags: [greenformers]\n---",
        f"# {name}, compressed",
        differs if foreign else own if not changes else f"{own} What was changed:\n{said}",
        f"```python\n{loading}\n```",
        card,
        "" if report is None else f"## What was done\n\n{report.markdown()}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
