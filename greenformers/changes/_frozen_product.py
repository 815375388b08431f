"""The product of a layer whose weight is not learnt, with a gradient for what comes before it."""

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from greenformers._gradients import by_hand


class Frozen(Protocol):
    """A linear layer with a weight that is not learnt."""

    @property
    def weight(self) -> Tensor:
        """The dense weight (m, n) that it stands for."""

    def product(self, x: Tensor) -> Tensor:
        """The outputs, without a gradient."""

    def pulled(self, grad: Tensor) -> Tensor:
        """The gradient in the inputs, of that in the outputs."""


def frozen_product(x: Float[Tensor, "... n"], layer: Frozen) -> Float[Tensor, "... m"]:
    """The outputs of a layer; nothing of its weight is kept for the gradient."""
    if x.requires_grad and torch.is_grad_enabled():
        y: Tensor = _Product.apply(x, layer)
        return y
    return layer.product(x)


class _Product(torch.autograd.Function):
    """A product whose gradient is that of the dense weight: inputs as if they were not rounded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Frozen) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer = layer
        return layer.product(x)

    @staticmethod
    @by_hand(1, lambda ctx, x: F.linear(x, ctx.layer.weight.to(x.dtype)))
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.layer.pulled(grad), None
