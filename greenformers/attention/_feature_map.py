"""The interface of feature maps phi for kernel attention, and the exponential ones that several mechanisms use."""

from typing import Protocol

import torch
from torch import Tensor


class FeatureMap(Protocol):
    """phi, with derivatives. Each method takes a chunk (B, H, C, D) and gives features (B, H, C, F)."""

    width: int
    """Number F of features."""

    has_shifts: bool
    """Whether `keys` gives shifts."""

    def queries(self, x: Tensor) -> Tensor:
        """phi(x), up to a factor of each position, which cancels."""

    def keys(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """phi(x) divided by exp(shift), and the shift (B, H, C, 1); None without shifts."""

    def of_queries(self, x: Tensor, phi: Tensor, grad: Tensor) -> Tensor:
        """The gradient of queries from that of their features."""

    def of_keys(self, x: Tensor, phi: Tensor, grad: Tensor) -> Tensor:
        """The gradient of keys from that of their features, times exp(shift)."""


class Exponential:
    """phi(x) = exp(w y - |y|^2 / 2) for the rows w of a matrix and y = scale x, or exp(x) without rows.

    Args:
        width: Number F of features.
        rows: Matrix w (F, D); None: F = D features exp(x).
        scale: Factor of x.
    """

    has_shifts = True

    def __init__(self, width: int, rows: Tensor | None = None, scale: float = 1.0) -> None:
        self.width, self.square = width, scale**2
        self.rows = None if rows is None else scale * rows

    def _logarithm(self, x: Tensor) -> Tensor:
        return x if self.rows is None else x @ self.rows.mT

    def queries(self, x: Tensor) -> Tensor:
        return self._logarithm(x).softmax(-1)

    def keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = self._logarithm(x)
        largest = a.detach().amax(-1, keepdim=True)
        if self.rows is None:
            return (a - largest).exp_(), largest
        shift = largest - self.square / 2 * x.square().sum(-1, keepdim=True)
        return (a - largest if torch.is_grad_enabled() else a.sub_(largest)).exp_(), shift

    def of_queries(self, x: Tensor, phi: Tensor, grad: Tensor) -> Tensor:
        grad = grad.mul_(phi)
        return grad if self.rows is None else grad @ self.rows

    def of_keys(self, x: Tensor, phi: Tensor, grad: Tensor) -> Tensor:
        grad = grad.mul_(phi)
        return grad if self.rows is None else grad @ self.rows - self.square * grad.sum(-1, keepdim=True) * x
