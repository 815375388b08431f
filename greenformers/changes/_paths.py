"""Paths in the descriptions of changes: where they lead in a network."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from transformers import PreTrainedModel


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
