"""Pairs of corresponding parameters of two networks, copied in either direction."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from greenformers._registry import options_of
from greenformers.attention import attention_class
from greenformers.model.config import GreenformerConfig

Pairs = Iterable[tuple[Tensor, Tensor]]
"""Pairs of a parameter of theirs and of ours, or of views of these, of the same shape."""


def of_modules(theirs: nn.Module, ours: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs of all parameters of a module, by name."""
    for name, parameter in ours.named_parameters():
        yield theirs.get_parameter(name), parameter


@torch.no_grad()
def copy(pairs: Pairs, *, back: bool = False) -> None:
    """Copy the values of theirs to ours; with `back` those of ours to theirs.

    Raises:
        ValueError: Two parameters of a pair have different shapes.
    """
    for theirs, ours in pairs:
        if theirs.shape != ours.shape:
            raise ValueError(f"sizes must be the same, got {tuple(theirs.shape)} and {tuple(ours.shape)}")
        if back:
            theirs.copy_(ours)
        else:
            ours.copy_(theirs)


def only(config: Any, **required: Any) -> None:
    """Raise ValueError where a configuration has another value than the one that can be taken over."""
    for name, value in required.items():
        if (given := getattr(config, name, value)) != value:
            raise ValueError(f"{name} must be {value!r}, the only one a warm start can take over; got {given!r}")


def dropping(config: GreenformerConfig, rate: float, own: Callable[[int, str], dict[str, Any]] = lambda *_: {}) -> None:
    """Give the mechanisms of a configuration that drop attention weights a rate, and some further options.

    Args:
        config: The configuration, whose own options come first.
        rate: The rate.
        own: Function from a layer and the name of its mechanism to its further options.
    """
    merged: list[dict[str, Any] | None] = []
    for layer, name in enumerate(config.per_layer("attention")):
        options = {"dropout": rate} if "dropout" in options_of(attention_class(name)) else {}
        merged.append(options | own(layer, name) | (config.per_layer("attention_options")[layer] or {}))
    config.attention_options = merged[0] if all(entry == merged[0] for entry in merged) else merged
