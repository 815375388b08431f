"""Paths in the descriptions of changes, and the modules of a network that they name."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from transformers import PreTrainedModel


def located(model: nn.Module, paths: Iterable[str]) -> dict[str, str]:
    """The path in a network for each path of a description; those that name no module are left out.

    In a model of transformers the prefix of the base model may be there or not, so that heads may be added or removed.
    """
    stem = f"{model.base_model_prefix}." if isinstance(model, PreTrainedModel) and model.base_model_prefix else ""
    named = dict(model.named_modules(remove_duplicate=False))
    places = {}
    for path in paths:
        variants = (path, path.removeprefix(stem), stem + path)
        if (place := next((variant for variant in variants if variant and variant in named), None)) is not None:
            places[path] = place
    return places


def check_paths(label: str, given: Any) -> None:
    """Check that a value of a description is a list of paths.

    Raises:
        ValueError: It is not.
    """
    if not isinstance(given, list) or not all(isinstance(path, str) for path in given):
        raise ValueError(f"{label} must be a list of paths")


def check_keys(label: str, given: Any, keys: Iterable[str]) -> None:
    """Check that a description is an object with just these keys.

    Raises:
        ValueError: It is not.
    """
    if not isinstance(given, dict) or given.keys() != set(keys):
        raise ValueError(f"{label} must be an object with {', '.join(keys)}")
