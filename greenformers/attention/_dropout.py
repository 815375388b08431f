"""Dropout that a backward pass can repeat."""

import torch
from torch import Tensor


def new_seed(dropout: float) -> int:
    """A seed drawn from the default generator; 0 without dropout, which draws nothing."""
    return int(torch.randint(2**31, ())) if dropout else 0


def drop_(weights: Tensor, dropout: float, seed: int) -> int:
    """Drop weights in place, the same ones for the same seed, and return the seed of the next call."""
    if not dropout:
        return seed
    generator = torch.Generator(weights.device).manual_seed(seed)
    weights.mul_(torch.empty_like(weights).bernoulli_(1 - dropout, generator=generator)).div_(1 - dropout)
    return seed + 1
