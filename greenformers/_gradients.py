"""Backward passes written by hand, and their use in second derivatives and in transforms of functions.

To torch the result of a backward pass written by hand is a constant. Its `once_differentiable` notices only where the
gradient of the output is itself differentiated: for a loss that is linear in the output, second derivatives would be
wrong without an error. And `torch.func` knows only functions that keep nothing but their inputs and outputs.

So each such function has a second form in operations that torch differentiates, which is slower and takes more memory.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

Backward = Callable[..., Any]

Plain = Callable[..., Tensor]
"""From the context of the forward pass and its first inputs to its output, in operations that torch differentiates."""


def by_hand(count: int, plain: Plain) -> Callable[[Backward], Backward]:
    """A backward pass that is not differentiated itself; where its derivative is needed, that of `plain` is taken.

    Args:
        count: Number of inputs with gradients: the first ones, which are also the first tensors that the forward pass
            saves.
        plain: The same function in operations that torch differentiates.
    """

    def decorate(backward: Backward) -> Backward:
        @wraps(backward)
        def of_either(ctx: Any, *grads: Tensor) -> Any:
            # Autograd enables gradients where that of the output is to be differentiated.
            if not torch.is_grad_enabled() or torch.compiler.is_compiling():
                return backward(ctx, *grads)
            # Views of them: one input may have been computed from another.
            inputs = [None if x is None else x.view_as(x) for x in ctx.saved_tensors[:count]]
            out = plain(ctx, *inputs)
            differentiable = [x for x in inputs if x is not None and x.requires_grad]
            gradients = iter(torch.autograd.grad(out, differentiable, grads[0], create_graph=True, allow_unused=True))
            of_inputs = [next(gradients) if x is not None and x.requires_grad else None for x in inputs]
            return *of_inputs, *[None] * (len(ctx.needs_input_grad) - count)

        return of_either

    return decorate


def only_once(name: str) -> Callable[[Backward], Backward]:
    """A backward pass that is not differentiated itself, and raises where its derivative is needed.

    Args:
        name: Name of the function or module that has it, for the message.
    """

    def decorate(backward: Backward) -> Backward:
        @wraps(backward)
        def refusing(ctx: Any, *grads: Tensor | None) -> Any:
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                raise RuntimeError(f"{name} has no second derivative: create_graph must be False")
            return backward(ctx, *grads)

        return refusing

    return decorate
