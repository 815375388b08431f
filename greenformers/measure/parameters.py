"""The number of parameters of a module."""

from torch import nn


def parameters(module: nn.Module) -> int:
    """Count the numbers in the parameters of `module`, trainable or frozen; tied or shared ones count once.

    Buffers are not parameters and are not counted.
    """
    return sum(parameter.numel() for parameter in module.parameters())
