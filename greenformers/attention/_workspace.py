"""Storage that is used again: new pages of memory cost as much as a product on them."""

from math import prod

import torch
from torch import Tensor


class Workspace:
    """Storage for tensors of some names, each of which overwrites the one before it of its name.

    Args:
        like: A tensor of the device.
        dtype: Type of the tensors.
    """

    def __init__(self, like: Tensor, dtype: torch.dtype) -> None:
        self.like, self.dtype = like, dtype
        self.tensors: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        """An uninitialised tensor of a name, which shares its storage with later ones of that name."""
        count = prod(shape)
        if name not in self.tensors or self.tensors[name].numel() < count:
            self.tensors[name] = self.like.new_empty(count, dtype=self.dtype)
        return self.tensors[name][:count].view(shape)
