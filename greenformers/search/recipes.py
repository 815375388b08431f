"""Recipes in words: their names, the command lines that make them, and healing put into them."""

import shlex
from dataclasses import dataclass

from greenformers.changes import Change, kinds
from greenformers.changes._options import as_flags

DENSE = "as it is"

Recipe = tuple[Change, ...]
"""Changes in order; an empty recipe is the model as it is."""


def name_of(recipe: Recipe) -> str:
    """Name of a recipe, for people."""
    return " + ".join(change.label for change in recipe) or DENSE


def command(recipe: Recipe, model: str, texts: str, at: "Setting") -> str:
    """The command line that applies a recipe.

    Args:
        recipe: Changes in order.
        model: Folder or name of the model.
        texts: File of texts.
        at: Setting that the recipe was measured in.

    Raises:
        ValueError: Raised where the recipe is empty.
    """
    if not recipe:
        raise ValueError("the model as it is needs no command")
    words = ["greenformers", "compress", model, *as_flags(recipe)]
    if at.length is not None:
        words += ["--length", str(at.length), "--lengths", str(at.length)]
    if {"calibration", "training"} & {need for change in recipe for need in change.uses}:
        words += ["--texts", texts]
    return shlex.join([*words, "--out", "small"])


def export_command(runtime: str, texts: str, length: int | None) -> str:
    """The command line that writes what `command` makes for another runtime than torch.

    Args:
        runtime: A format of `export`.
        texts: File of texts to calibrate with and to judge by.
        length: Tokens of a text, as timed; None for the usual one.
    """
    words = ["greenformers", "export", "small", "--formats", runtime, "--texts", texts]
    if length is not None:
        words += ["--length", str(length), "--lengths", str(length)]
    return shlex.join([*words, "--out", f"small-{runtime}"])


def healed(recipe: Recipe, rows: int) -> Recipe:
    """The recipe with a training of the default kind on so many examples, before changes that freeze weights."""
    trainer = next(kind for kind in kinds() if kind.trains)
    place = next((number for number, change in enumerate(recipe) if change.freezes), len(recipe))
    before, following = recipe[:place], recipe[place:]
    return (*before, trainer.suited(texts=rows, before=before, following=following), *following)


@dataclass(frozen=True)
class Setting:
    """Setting that recipes were measured in.

    Attributes:
        length: Tokens of a text, as timed; None for inputs without a length.
        batch: Examples in a batch.
        rows: Least number of examples, or of blocks of text, that a training has.
    """

    length: int | None
    batch: int
    rows: int = 64
