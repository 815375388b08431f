"""Undo changes, back to the network that the class builds, as far as they can be undone."""

from torch import nn

from greenformers.checkpoint.structure import changes_of, mark


def merge(model: nn.Module) -> int:
    """Undo the changes of a network that can be undone, in place, the last one first. The number of parts changed back.

    Low-rank layers become dense again, each the product of its factors, and weights that were tied are tied again.
    What stays (another attention, fewer layers) stays.

    Raises:
        ValueError: A change that came after the others cannot be undone.
    """
    for change in changes_of(model):
        if change.freezes:
            change.revert(model)  # which raises where it cannot be undone, before others are
    count = sum(change.revert(model) for change in reversed(changes_of(model)))
    mark(model)
    if not changes_of(model):
        # The configuration is that of a dense network again, and no quantizer is needed to save it.
        vars(model).pop("hf_quantizer", None)
    return count
