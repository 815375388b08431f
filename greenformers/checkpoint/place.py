"""Change a network as a description says, with empty modules, and prepare it for use once its weights are read."""

from torch import nn
from transformers import PreTrainedModel

from greenformers.changes import kind
from greenformers.checkpoint.description import Description
from greenformers.checkpoint.structure import ORDER, mark, tie

ALIGNED = 64
"""Bytes to a multiple of which torch aligns tensors."""

MISSING = "_paths_missing"
"""Attribute in which the plug-in leaves for `load` the paths of a description that the network does not have."""


def place(model: nn.Module, described: Description) -> list[str]:
    """Change a network as described, in the order of the changes, by empty modules. The paths that it does not have.

    Raises:
        ValueError: A module cannot be changed as described, or a number is out of range.
    """
    missing = [path for name in described.order for path in kind(name).place(model, described.changes[name])]
    setattr(model, ORDER, list(described.order))
    if isinstance(model, PreTrainedModel):
        tie(model)
    return missing


def settle(model: nn.Module) -> None:
    """Prepare a network that was read from a checkpoint for use."""
    align(model)
    for name in mark(model).order:
        kind(name).settle(model)


def align(model: nn.Module) -> None:
    """Copy weights that are not aligned, as they are where their file has them, to addresses as torch chooses them.

    On some processors the rounding of sums depends on the address where numbers begin: without this, outputs of a
    network that is read again would not be equal to the bit.
    """
    for weight in model.parameters():
        if weight.is_cpu and weight.data_ptr() % ALIGNED:
            weight.data = weight.data.clone()
