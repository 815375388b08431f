"""The control of low rank: the dense network of smaller width that has as many parameters, or as many FLOPs.

A low-rank network that is trained from the start competes with it, not with the wide dense one: whoever has the
parameters or the time for the one has them for the other.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from greenformers.measure.flops import flops
from greenformers.measure.parameters import parameters
from greenformers.model.config import GreenformerConfig
from greenformers.model.variant import control


def controlled(
    variant: str,
    config: GreenformerConfig,
    build: Callable[[GreenformerConfig], nn.Module],
    call: Callable[[Any, GreenformerConfig], object],
) -> GreenformerConfig:
    """The configuration of a variant: for a control of lrt the narrower one, else the one that is given.

    Args:
        variant: Name of the variant, see `greenformers.model.variant`.
        config: Configuration with the slots of the variant.
        build: Function that makes the network of a configuration.
        call: Function that runs a network of a configuration, whose FLOPs are counted for the control of equal FLOPs.

    Raises:
        ValueError: As in `narrower`.
    """
    of = control(variant)
    if of is None:
        return config

    def cost(config: GreenformerConfig) -> float:
        if of == "parameters":
            with torch.device("meta"):
                return parameters(build(config))
        network = build(config).eval()
        with torch.inference_mode():
            return flops(lambda: call(network, config))

    return narrower(config, cost)


def narrower(config: GreenformerConfig, cost: Callable[[GreenformerConfig], float]) -> GreenformerConfig:
    """The configuration of the widest dense network that costs no more than that of a configuration with ranks.

    The number of heads stays; their dimension and the inner width of the feed-forward block shrink with the width. Head
    dimensions are even, as rotary positions turn pairs of coordinates.

    Args:
        config: Configuration with ranks.
        cost: Cost of the network of a configuration, which grows with its width.

    Raises:
        ValueError: There are no ranks, or even heads of two coordinates cost more.
    """
    if config.rank is None:
        raise ValueError("a narrower network is one that costs as little as with a rank, which is None")
    d, f, step = config.hidden_size, config.intermediate_size, 2 * config.num_attention_heads

    def dense(count: int) -> GreenformerConfig:
        narrow = config.without_ranks()
        narrow.hidden_size, narrow.intermediate_size = count * step, max(1, round(f * count * step / d))
        return narrow

    most = cost(config)
    low, high = 0, d // step
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cost(dense(middle)) <= most else (low, middle - 1)
    if not low:
        raise ValueError(
            f"no dense network of {config.num_attention_heads} heads costs as little as that of width {d} with the "
            f"rank {config.rank}: choose a greater rank, fewer heads or another variant"
        )
    return dense(low)
