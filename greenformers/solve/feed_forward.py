"""The feed-forward layers of a network: linear layers between which every neuron is computed apart, at every position.

They are found by what they compute, not by name: the input of the second layer at a neuron and position depends on the
output of the first one (of gate and up projection, where there are two) at that neuron and position alone.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from greenformers.measure.quality import evaluating
from greenformers.solve.walk import Site, sites
from greenformers.solve.watch import Batch, call

TRIED = 8
"""Neurons of which it is tried on what they depend."""


@dataclass(frozen=True)
class FeedForward:
    """A feed-forward layer.

    Attributes:
        first: Paths of the linear layers whose outputs are its neurons: one, or gate and up projection.
        second: Path of the linear layer that reads them.
        width: Number of neurons n.
        calls: How often a pass calls them.
    """

    first: tuple[str, ...]
    second: str
    width: int
    calls: int


def feed_forwards(model: nn.Module, example: Batch) -> list[FeedForward]:
    """The feed-forward layers that a batch reaches, in the order of execution.

    Args:
        model: The network.
        example: A batch with texts of at least two tokens.

    Raises:
        ValueError: There are none.
    """
    linear = [site for site in sites(model, "linear") if len(site.paths) == 1]
    given, outputs, calls = _seen(model, linear, example)
    makers: dict[str, list[str]] = {}
    for second in linear:
        x = given.get(second.path)
        if x is not None and x.dim() == 3 and x.shape[1] > 1:
            alike = (site.path for site in linear if site.m == second.n and site is not second and site.path in outputs)
            makers[second.path] = [path for path in alike if _apart(outputs[path], x)]
    readers = Counter(path for first in makers.values() for path in first)
    layers = [
        FeedForward(tuple(first), second.path, second.n, calls[second.path])
        for second in linear
        # What several layers read is a hidden state, as that behind a projection of embeddings.
        if (first := makers.get(second.path)) and all(readers[path] == 1 for path in first)
    ]
    if not layers:
        raise ValueError(f"{type(model).__name__} has no feed-forward layers of two or three linear layers")
    order = list(given)
    return sorted(layers, key=lambda layer: order.index(layer.second))


def _seen(
    model: nn.Module, linear: Sequence[Site], example: Batch
) -> tuple[dict[str, Tensor], dict[str, Tensor], Counter[str]]:
    """Input and output of each layer in its first call, and the numbers of calls.

    Outputs are leaves, so that gradients end there.
    """
    given: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}
    calls: Counter[str] = Counter()

    def note(path: str) -> Any:
        def hook(_: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
            leaf = out.detach().requires_grad_()
            calls[path] += 1
            given.setdefault(path, args[0])
            outputs.setdefault(path, leaf)
            return leaf

        return hook

    with evaluating(model), torch.enable_grad(), ExitStack() as stack:
        for site in linear:
            stack.callback(site.module.register_forward_hook(note(site.path)).remove)
        call(model, example)
    return given, outputs, calls


def _apart(y: Tensor, x: Tensor) -> bool:
    """Whether inputs x (B, N, n) at a neuron and position depend on outputs y at that neuron and position alone."""
    if y.shape != x.shape or not x.requires_grad:
        return False
    at = x.shape[1] // 2
    neurons = x[0, at].detach().abs().topk(min(TRIED, x.shape[2])).indices  # not those that ReLU silences
    (slope,) = torch.autograd.grad(x[0, at, neurons].sum(), y, retain_graph=True, allow_unused=True)
    if slope is None:
        return False
    touched = slope != 0
    alone = int(touched[0, at, neurons].sum())
    return 2 * alone >= len(neurons) and alone == int(touched.sum())
