"""A network changed as a description says, empty; and what it needs once its weights are read."""

from torch import nn
from transformers import PreTrainedModel

from greenformers.changes import kind
from greenformers.checkpoint.description import Description
from greenformers.checkpoint.structure import ORDER, mark, tie

ALIGNED = 64
"""Bytes to a multiple of which torch aligns its memory."""

MISSING = "_paths_missing"
"""Where the plug-in leaves, for `load`, the paths of a description that the network does not have."""


def place(model: nn.Module, described: Description) -> list[str]:
    """Change a network as described, in the order of the changes; what is put in is empty. The paths not there.

    Raises:
        ValueError: a path leads to something that cannot be changed so, or a number is out of range.
    """
    missing = [path for name in described.order for path in kind(name).place(model, described.changes[name])]
    setattr(model, ORDER, list(described.order))
    if isinstance(model, PreTrainedModel):
        tie(model)
    return missing


def settle(model: nn.Module) -> None:
    """Do what a network that was read anew needs before it is used."""
    align(model)
    for name in mark(model).order:
        kind(name).settle(model)


def align(model: nn.Module) -> None:
    """Put weights that lie where their file has them where torch would put them.

    On some processors sums are rounded by where in memory their numbers begin: read again, a network would not say to
    the bit what it said before.
    """
    for weight in model.parameters():
        if weight.is_cpu and weight.data_ptr() % ALIGNED:
            weight.data = weight.data.clone()
