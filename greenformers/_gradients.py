"""Backward passes written by hand, and what else may be asked of them: second derivatives, and transforms of functions.

To torch what a backward pass computes by hand is a constant. Its `once_differentiable` notices only where the gradient
of the output is itself differentiated: for a loss that is linear in the output, second derivatives would be wrong
without a word. And `torch.func` knows only functions that keep nothing but their inputs and outputs.

So each such function has the same in operations that torch differentiates, slower, and with more memory.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

Backward = Callable[..., Any]

Plain = Callable[..., Tensor]
"""From what the forward pass kept, and its first inputs: its output in operations that torch differentiates."""


def by_hand(count: int, plain: Plain) -> Callable[[Backward], Backward]:
    """A backward pass in which nothing is differentiated; where its own derivative is wanted, that of `plain`.

    Args:
        count: How many of the inputs have gradients: the first ones, which are also the first that the forward pass
            keeps.
        plain: The same function.
    """

    def decorate(backward: Backward) -> Backward:
        @wraps(backward)
        def of_either(ctx: Any, *grads: Tensor) -> Any:
            # Autograd enables gradients where that of the output is to be differentiated.
            if not torch.is_grad_enabled() or torch.compiler.is_compiling():
                return backward(ctx, *grads)
            # Other names for them: one may have been computed from another.
            inputs = [None if x is None else x.view_as(x) for x in ctx.saved_tensors[:count]]
            out = plain(ctx, *inputs)
            wanted = [x for x in inputs if x is not None and x.requires_grad]
            found = iter(torch.autograd.grad(out, wanted, grads[0], create_graph=True, allow_unused=True))
            of_inputs = [next(found) if x is not None and x.requires_grad else None for x in inputs]
            return *of_inputs, *[None] * (len(ctx.needs_input_grad) - count)

        return of_either

    return decorate


def only_once(name: str) -> Callable[[Backward], Backward]:
    """A backward pass in which nothing is differentiated, and which says so where its own derivative is wanted.

    Args:
        name: of what has it.
    """

    def decorate(backward: Backward) -> Backward:
        @wraps(backward)
        def refusing(ctx: Any, *grads: Tensor | None) -> Any:
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                raise RuntimeError(f"{name} has no second derivative: create_graph must be False")
            return backward(ctx, *grads)

        return refusing

    return decorate
