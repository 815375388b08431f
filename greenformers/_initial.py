"""Initial values of parameters, which leave alone what was loaded from a checkpoint."""

import torch
from torch import Tensor, nn

from greenformers._torch import is_fake


def set_(tensor: Tensor, values: Tensor) -> None:
    """Initialise a parameter or buffer with these values, unless it was loaded from a checkpoint."""
    if may_set(tensor):
        with torch.no_grad():
            tensor.copy_(values)


def may_set(tensor: Tensor) -> bool:
    """Whether a parameter or buffer has values and they were not loaded; it is NaN then, until it is set.

    transformers initialises modules with parameters missing in a checkpoint, and meanwhile makes the functions of
    `torch.nn.init` skip loaded tensors: whether they skip this one is tested by filling it with NaN.
    """
    if tensor.is_meta or is_fake(tensor):
        return False
    nn.init.constant_(tensor, torch.nan)
    return bool(tensor.isnan().all())
