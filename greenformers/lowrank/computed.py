"""A weight that is no parameter but is computed: the product of factors, or integers times a scale."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from greenformers._torch import in_transform, map_leaves

ASKED = frozenset(
    [
        *(getattr(Tensor, name).__get__ for name in ("dtype", "shape", "ndim", "layout")),
        Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point, Tensor.element_size, Tensor.__len__,
    ]
)  # fmt: skip
"""Attributes and methods of a tensor that are known without its numbers."""


def computed(compute: Callable[[], Tensor], shape: tuple[int, ...], like: Tensor) -> Tensor:
    """A tensor that is computed where something is computed with it, and not where only its type or shape is asked for.

    As with any result of a computation, writing into it changes nothing else; replacing its `data` raises.

    T5 asks for the type of a weight at each call, and never reads the weight: multiplying two factors out for that
    would take longer than all other work on a token.

    Args:
        compute: Function that returns the tensor; gradients reach the tensors it is computed from.
        shape: Shape of the tensor.
        like: A tensor of the same dtype and on the same device.
    """
    if torch.compiler.is_compiling() or in_transform():
        return compute()
    lazy = torch.empty(shape, dtype=like.dtype, device="meta").as_subclass(_Computed)
    lazy.compute, lazy.at = compute, like.device
    return lazy


class _Computed(Tensor):
    """Stands for a tensor until something is computed with it."""

    compute: Callable[[], Tensor]
    at: torch.device

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in ASKED:
            return super().__torch_function__(func, types, args, kwargs)
        if func == Tensor.device.__get__:
            return args[0].at
        if func.__name__ == "__set__":
            raise RuntimeError("this weight is computed from others, and cannot be written to: change those")
        args, kwargs = map_leaves(lambda x: x.compute() if isinstance(x, cls) else x, (args, kwargs or {}))
        return func(*args, **kwargs)
