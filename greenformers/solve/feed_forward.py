"""The feed-forward layers of a network: linear layers between which every neuron is computed apart, at every position.

They are found by what they compute, not by name: the input of the second layer at a neuron and position depends on the
output of the first one (of gate and up projection, where there are two) at that neuron and position alone.
"""

from collections import Counter

import torch
from torch import Tensor, nn

from greenformers.solve.coupled import Coupled
from greenformers.solve.dependence import Dependence
from greenformers.solve.watch import Batch

TRIED = 8
"""Neurons of which it is tried on what they depend."""


def feed_forwards(model: nn.Module, example: Batch) -> list[Coupled]:
    """The feed-forward layers that a batch reaches, each with its neurons, in the order of execution.

    Args:
        model: The network.
        example: A batch with texts of at least two tokens.

    Raises:
        ValueError: There are none.
    """
    seen = Dependence(model, example)
    makers: dict[str, list[str]] = {}
    for second, x in seen.inputs.items():
        if x.dim() == 3 and x.shape[1] > 1:
            alike = (path for path, y in seen.outputs.items() if path != second and y.shape == x.shape)
            makers[second] = [path for path in alike if _apart(seen.outputs[path], x)]
    readers = Counter(path for first in makers.values() for path in first)
    layers = [
        Coupled("neurons", dict.fromkeys(first, each), second, each, seen.calls[second])
        for second, first in makers.items()
        for each in [torch.arange(seen.inputs[second].shape[-1])[:, None]]
        # What several layers read is a hidden state, as that behind a projection of embeddings.
        if first and all(readers[path] == 1 for path in first)
    ]
    if not layers:
        raise ValueError(f"{type(model).__name__} has no feed-forward layers of two or three linear layers")
    return layers


def _apart(y: Tensor, x: Tensor) -> bool:
    """Whether inputs x (B, N, n) at a neuron and position depend on outputs y at that neuron and position alone."""
    if not x.requires_grad:
        return False
    at = x.shape[1] // 2
    # Not those that ReLU silences; and not all, or a single small head would look like neurons apart from each other.
    neurons = x[0, at].detach().abs().topk(min(TRIED, max(1, x.shape[2] // 2))).indices
    (slope,) = torch.autograd.grad(x[0, at, neurons].sum(), y, retain_graph=True, allow_unused=True)
    if slope is None:
        return False
    touched = slope != 0
    alone = int(touched[0, at, neurons].sum())
    return 2 * alone >= len(neurons) and alone == int(touched.sum())
