"""Dropout that a backward pass can repeat."""

import torch
from torch import Tensor


def new_seed(dropout: float) -> int:
    """Drawn from the default generator, where there is something to drop."""
    return int(torch.randint(2**31, ())) if dropout else 0


def drop_(weights: Tensor, dropout: float, seed: int) -> int:
    """Drop some weights in place, the same ones for the same seed; the seed of the next ones."""
    if not dropout:
        return seed
    generator = torch.Generator(weights.device).manual_seed(seed)
    weights.mul_(torch.empty_like(weights).bernoulli_(1 - dropout, generator=generator)).div_(1 - dropout)
    return seed + 1
