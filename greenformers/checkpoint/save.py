"""Write a compressed network to a folder: weights in safetensors, and a card that says how to load it."""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import save_model
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from greenformers.changes import kind
from greenformers.changes._recipe import RECIPE, recipe_text
from greenformers.changes._report import CompressionReport
from greenformers.checkpoint.description import STRUCTURE
from greenformers.checkpoint.pooling import check_carried, is_sentence_transformer, know, transformer_in
from greenformers.checkpoint.sentence import MODULES, TOKENIZER, sentence_folder
from greenformers.checkpoint.structure import mark, structure
from greenformers.checkpoint.trial import try_again
from greenformers.data._pooling import pooling_of

REPORT = "compression.json"
"""The report of the recipe, beside the weights."""

MARK = "library_name: greenformers"
"""At the head of every card: what tells a folder that may be replaced."""

SENTENCES = """from sentence_transformers import SentenceTransformer

model = SentenceTransformer("this folder")  # after `import greenformers`; the same pooling and modules as before"""


def save(
    model: nn.Module,
    folder: str | Path,
    report: CompressionReport | None = None,
    card: str = "",
    tokenizer: PreTrainedTokenizerBase | None = None,
    processor: Any = None,
    example: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write a changed network whole; `greenformers.load` reads it.

    Before it is called done it is read again and run once, see `greenformers.checkpoint.trial`. A folder that exists is
    replaced once all is written: a crash leaves the old one, or the new one. Of a SentenceTransformer all modules are
    written; with a transformer that was read from a folder of sentence-transformers, those of that folder.

    Args:
        model: Any network that went through changes, or a SentenceTransformer whose transformer did.
        folder: For the files.
        report: Of `compress`; its tables go on the card, all of it into `compression.json`, its recipe into
            `recipe.toml`.
        card: More Markdown for the card.
        tokenizer: Saved beside it; by default that of the folder of sentence-transformers, if it was read from one.
        processor: Image processor, feature extractor, or processor of `transformers`: saved beside it.
        example: Keyword arguments of a call of the model, to run it once; by default made from its configuration.

    Returns:
        The folder.

    Raises:
        ValueError: Nothing was changed in the network; or what was written is not what is in memory, or not finite;
            or the modules of its SentenceTransformer are at hand neither in a folder nor in `model`.
        OSError: The folder cannot be written, or holds something that is no saved network.
    """
    whole: Any = model if is_sentence_transformer(model) else None
    model = model if whole is None else transformer_in(whole)
    described = mark(model)
    if described.empty and report is None:
        raise ValueError("nothing was changed in the network: compress it first")
    know(model)
    if pooling_of(model).in_memory and whole is None:
        raise ValueError("the modules behind this transformer are in memory alone: save the SentenceTransformer")
    folder = Path(folder)
    with building(folder) as made:
        if whole is not None:
            whole.save(str(made), create_model_card=False)
        elif isinstance(model, PreTrainedModel):
            model.save_pretrained(made)
            _carry_modules(model, made, tokenizer is not None)
        else:
            save_model(model, str(made / "model.safetensors"))
            (made / STRUCTURE).write_text(json.dumps(described.as_dict(), indent=1) + "\n")
        if tokenizer is not None:
            tokenizer.save_pretrained(made)
        if processor is not None:
            processor.save_pretrained(made)
        describe(made, model, report, card)
        try_again(made, model, example)
        if isinstance(model, PreTrainedModel) and (made / MODULES).is_file():
            check_carried(made, pooling_of(model), model.config.get_text_config().hidden_size)
    return folder


def _carry_modules(model: PreTrainedModel, made: Path, has_tokenizer: bool) -> None:
    pooling = pooling_of(model)
    if pooling.folder is not None:
        found = sentence_folder(pooling.folder)
        if found is None:
            raise ValueError(
                f"{pooling.folder / MODULES} is gone, which the modules behind the model are to be read by"
            )
        found.carry(made, pooling.length)
        for pattern in () if has_tokenizer else TOKENIZER:
            for path in found.transformer.glob(pattern):
                shutil.copyfile(path, made / path.name)


@contextmanager
def building(folder: Path) -> Iterator[Path]:
    """A folder to write to in a `with` block; it takes the place of `folder` at the end, and is gone if that fails.

    Raises:
        FileExistsError: see `check_target`.
    """
    check_target(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield made
        made.chmod(0o755)
        replace(made, folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def describe(made: Path, model: nn.Module, report: CompressionReport | None, card: str = "") -> None:
    """Write the report and the recipe, if there is one, and the card."""
    if report is not None:
        (made / REPORT).write_text(json.dumps(report.as_dict(), indent=1) + "\n")
        (made / RECIPE).write_text(recipe_text(step.report.change for step in report.steps), encoding="utf-8")
    pooled = (made / MODULES).is_file()
    (made / "README.md").write_text(card_of(model, report, card, pooled))


def check_target(folder: Path) -> None:
    """See that a folder is free, or holds a network saved before: what is there will be removed.

    Raises:
        FileExistsError: it is a file, or holds something else.
    """
    if folder.exists() and not (folder.is_dir() and (_saved(folder) or not any(folder.iterdir()))):
        raise FileExistsError(f"{folder} exists and holds no compressed network: name another folder")


def check_place(folder: Path) -> None:
    """See that a folder can be made, or replaced, where it is to be: before any work begins.

    Raises:
        FileExistsError: See `check_target`.
        FileNotFoundError: There is no folder to make it in.
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
    card = folder / "README.md"
    if not card.is_file() or not any(folder.glob("model*.safetensors")):
        return False
    with card.open(encoding="utf-8", errors="replace") as file:
        return MARK in file.read(200)


def replace(made: Path, folder: Path) -> None:
    """Put a finished folder in the place of another."""
    if folder.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        folder.rename(old / "old")
        try:
            made.rename(folder)
        except BaseException:
            (old / "old").rename(folder)
            old.rmdir()
            raise
        shutil.rmtree(old)
    else:
        made.rename(folder)


def card_of(model: nn.Module, report: CompressionReport | None, card: str, pooled: bool = False) -> str:
    """The model card: how to load it, `pooled` by sentence-transformers too, what it costs, what was done."""
    name = type(model).__name__
    loading = (
        f"import greenformers\nfrom transformers import {name}\n\n"
        f'model = {name}.from_pretrained("this folder")  # after `import greenformers`, which registers the plug-in\n'
        'model = greenformers.load("this folder")  # or this, which does not return a network with missing weights'
        if isinstance(model, PreTrainedModel)
        else f'import greenformers\n\nmodel = greenformers.load("this folder", into={name}(...))  # the dense network'
    )
    if pooled:
        loading += f"\n\n{SENTENCES}"
    changes = [kind(name) for name in structure(model).order]
    said = "".join(f"\n- `{change.name()}`: {(change.__doc__ or '').splitlines()[0]}" for change in changes)
    warning = (
        f"What differs from the network that its class builds:\n{said}\n\n`greenformers` must be installed to load it: "
        "without it `transformers` stops, because one weight has a dimension more than it expects."
    )
    parts = [
        f"---\n{MARK}\ntags: [greenformers]\n---",
        f"# {name}, compressed",
        warning if changes else "It is of the form that its class builds.",
        f"```python\n{loading}\n```",
        card,
        "" if report is None else f"## What was done\n\n{report.markdown()}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
