"""Parameters of two networks that are the same: copied one way or the other."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

Pairs = Iterable[tuple[Tensor, Tensor]]
"""Parameters of theirs and of ours, or views of these, of the same shape."""


def of_modules(theirs: nn.Module, ours: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """All parameters of a module, by name."""
    for name, parameter in ours.named_parameters():
        yield theirs.get_parameter(name), parameter


@torch.no_grad()
def copy(pairs: Pairs, *, back: bool = False) -> None:
    """Give ours the values of theirs; `back`: theirs the values of ours.

    Raises:
        ValueError: the two have different shapes.
    """
    for theirs, ours in pairs:
        if theirs.shape != ours.shape:
            raise ValueError(f"sizes must be the same, got {tuple(theirs.shape)} and {tuple(ours.shape)}")
        if back:
            theirs.copy_(ours)
        else:
            ours.copy_(theirs)


def only(config: Any, **wanted: Any) -> None:
    """Raise ValueError where a configuration has another value than the one that can be taken over."""
    for name, value in wanted.items():
        if (given := getattr(config, name, value)) != value:
            raise ValueError(f"{name} must be {value!r}, the only one a warm start can take over; got {given!r}")
