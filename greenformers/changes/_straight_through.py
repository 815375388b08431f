"""Weights that are rounded in training, with the gradient of weights that are not (Bengio 2013, arXiv:1308.3432).

With Quant-Noise (Fan 2021, arXiv:2004.07320) each step rounds a share of the weights only, drawn at random, so that the
others have the gradient of a network that is not rounded; evaluation rounds all.
"""

import torch
from torch import Tensor


def straight_through(weight: Tensor, rounded: Tensor, noise: Tensor | None = None) -> Tensor:
    """The rounded weight, whose gradient goes to the weight as it is.

    Args:
        weight: The weight.
        rounded: The same, rounded; of a gradient of its own where it has parameters.
        noise: Which weights are rounded, 1 or 0; by default all.
    """
    change = rounded - weight.detach()
    return weight + (change if noise is None else change * noise)


def noise_of(weight: Tensor, share: float, training: bool, block: int = 1) -> Tensor | None:
    """Which weights (m, n) a step rounds: this share of the blocks of neighbouring inputs; None for all of them."""
    if not training or share == 1:
        return None
    n = weight.shape[-1]
    drawn = torch.rand(*weight.shape[:-1], -(-n // block), device=weight.device) < share
    return drawn.to(weight.dtype).repeat_interleave(block, -1)[..., :n]


def rounded_inputs(x: Tensor) -> Tensor:
    """Inputs of a linear layer, rounded to 8 bits by the least and the greatest of them, with the gradient as above."""
    with torch.no_grad():
        low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
        step = ((high - low) / 255).clamp(min=1e-12)
        rounded = (x / step).round() * step
    return straight_through(x, rounded)
