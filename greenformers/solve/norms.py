"""What a norm computes: y = w z / sqrt(mean z^2 + eps) + b, with z = x - mean x (LayerNorm) or z = x (RMS norm).

It is read from its outputs, since classes differ in what they call eps, and some multiply by 1 + w.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

CLOSE = 1e-4
"""Largest relative difference between a norm's outputs and those of its form: norms may compute in float32."""


@dataclass(frozen=True)
class NormForm:
    """The form of a norm.

    Attributes:
        centred: Whether the mean is subtracted first.
        weight, bias: Factor and summand of each coordinate (d,), float64.
        eps: Summand of the mean square.
        added: What the norm adds to its parameter to make the factor, 0 or 1.
    """

    centred: bool
    weight: Tensor
    bias: Tensor
    eps: float
    added: int = 0

    def set(self, norm: nn.Module, weight: Tensor, bias: Tensor) -> None:
        """Give a norm of this form other factors and summands (d,); these are left out where it has none."""
        given: Any = norm
        with torch.no_grad():
            given.weight.copy_(weight - self.added)
            if getattr(norm, "bias", None) is not None:
                given.bias.copy_(bias)


def norm_form(module: nn.Module) -> NormForm | None:
    """The form of a norm whose parameters are (d,); None where it computes something else."""
    norm = copy.deepcopy(module).double()
    parameters = [parameter.detach() for parameter in norm.parameters()]
    d, device = len(parameters[0]), parameters[0].device
    draw = torch.Generator().manual_seed(0)
    # Of inputs of several sizes, the smallest of which show eps.
    rows = (torch.randn(8, d, generator=draw, dtype=torch.float64) + 0.5).to(device)
    x = rows * torch.logspace(-4, 1, 8, dtype=torch.float64, device=device)[:, None]
    names = {value for value in vars(module).values() if type(value) is float and 0 <= value < 1}
    with torch.no_grad():
        y, bias = norm(x[None])[0].double(), norm(torch.zeros_like(x)[None])[0, 0].double()
    for centred in (False, True):
        for eps in sorted(names | {torch.finfo(torch.float32).eps}):
            z = normalised(x, centred, eps)
            weight = ((y - bias) * z).sum(0) / z.square().sum(0)
            if (weight * z + bias - y).abs().max() <= CLOSE * y.abs().max():
                exact = [
                    (added + held, added)
                    for held in parameters
                    for added in (0, 1)
                    if torch.allclose(added + held, weight, CLOSE, CLOSE)
                ]
                weight, added = exact[0] if exact else (weight, 0)
                return NormForm(centred, weight, bias, eps, added)
    return None


def normalised(x: Tensor, centred: bool, eps: float = 0.0) -> Tensor:
    """Inputs (..., d) less their mean, where they are centred, divided by the root of their mean square."""
    x = x - x.mean(-1, keepdim=True) if centred else x
    return x * (x.square().mean(-1, keepdim=True) + eps).clamp(min=torch.finfo(x.dtype).tiny).rsqrt()
