"""Modules that changes put in place of others: where they stand, and what they stand for."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn
from transformers import PreTrainedModel

STANDS_FOR = "_stands_for"


def stand_in(module: nn.Module, replaced: nn.Module) -> nn.Module:
    """Note on a module the empty skeleton, on the meta device, of the one that it replaces, for changes made before."""
    setattr(module, STANDS_FOR, (replaced,))  # in a tuple: no submodule
    return module


def originals(module: nn.Module) -> Iterator[nn.Module]:
    """A module, what it stands for, what that stood for, and so on."""
    yield module
    for replaced in getattr(module, STANDS_FOR, ()):
        yield from originals(replaced)


def located(model: nn.Module, paths: Iterable[str]) -> dict[str, str]:
    """Where the paths of a description lead in a network; those that lead nowhere are left out.

    Of a model of transformers the prefix of the base model may be there or not, so that a head may come or go.
    """
    stem = f"{model.base_model_prefix}." if isinstance(model, PreTrainedModel) and model.base_model_prefix else ""
    named = dict(model.named_modules(remove_duplicate=False))
    places = {}
    for path in paths:
        variants = (path, path.removeprefix(stem), stem + path)
        if (place := next((variant for variant in variants if variant and variant in named), None)) is not None:
            places[path] = place
    return places


def check_paths(what: str, given: Any) -> None:
    """See that what a description holds is a list of paths.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(given, list) or not all(isinstance(path, str) for path in given):
        raise ValueError(f"{what} must be a list of paths")


def check_keys(what: str, given: Any, keys: Iterable[str]) -> None:
    """See that a description is an object with just these keys.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(given, dict) or given.keys() != set(keys):
        raise ValueError(f"{what} must be an object with {', '.join(keys)}")
