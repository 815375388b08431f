"""Which units of each layer stay, of any number: by what is lost after the rest is fitted, or by Fisher information."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from greenformers.solve.calibrate import covariances
from greenformers.solve.choose_units import chosen
from greenformers.solve.coupled import Coupled
from greenformers.solve.refit import Moments, weight_of
from greenformers.solve.unit_order import Order, order
from greenformers.solve.walk import sites
from greenformers.solve.watch import Batch, Loss, trace


class Choice(Protocol):
    """A choice of the units of layers."""

    def see(self, layer: Coupled, reader: nn.Module, of_inputs: Moments | None) -> None:
        """Take note of a layer before its units are chosen: the linear layer that reads them, moments of its inputs."""

    def left(self, layer: Coupled, count: int) -> Tensor:
        """The units that stay, of a number; ascending."""

    def lost(self, layer: Coupled) -> Tensor:
        """What is lost with so many units left, as predicted (U + 1,): all, ..., 0 with U."""


class ByFit:
    """Those without which least is lost after the rest is fitted, see `greenformers.solve.unit_order`.

    Args:
        G: Curvature of the loss in the outputs of each layer's reader (m, m), by path.
    """

    def __init__(self, G: Mapping[str, Tensor]) -> None:
        self.G = G
        self.orders: dict[str, Order] = {}

    def see(self, layer: Coupled, reader: nn.Module, of_inputs: Moments | None) -> None:
        """Put the units of a layer in the order in which they go."""
        assert of_inputs is not None
        self.orders[layer.second] = order(of_inputs.C, weight_of(reader), layer.columns, self.G[layer.second])

    def left(self, layer: Coupled, count: int) -> Tensor:
        """The last ones to go."""
        return self.orders[layer.second].left(count)

    def lost(self, layer: Coupled) -> Tensor:
        """What is lost after the fit, to second order."""
        return self.orders[layer.second].lost


class ByFisher:
    """Those with most Fisher information, rearranged. Kwon 2022, arXiv:2204.09656.

    Args:
        felt: Gradients g of gates on the units of each layer (examples, U), by path.
    """

    def __init__(self, felt: Mapping[str, Tensor]) -> None:
        self.felt = felt

    def see(self, layer: Coupled, reader: nn.Module, of_inputs: Moments | None) -> None:
        """Nothing: the gates say all."""

    def left(self, layer: Coupled, count: int) -> Tensor:
        """The units with most information, rearranged by the whole block."""
        return chosen(self.felt[layer.second], count)

    def lost(self, layer: Coupled) -> Tensor:
        """The sum of what each unit holds by itself, least first."""
        least = self.felt[layer.second].double().square().mean(0).sort().values
        return torch.cat([least.new_zeros(1), least.cumsum(0)]).flip(0)


def curvatures(
    model: nn.Module,
    paths: Sequence[str],
    batches: Sequence[Batch],
    loss: Loss,
    *,
    memory: float = 2**30,
    progress: Callable[[float], None] = lambda _: None,
) -> dict[str, Tensor]:
    """The curvature of a loss in the outputs of linear layers: G = E d d^T over gradients d, (m, m) by path.

    Args:
        model: The network, left as it was.
        paths: Paths of the layers.
        batches: Batches of examples.
        loss: Loss of the model on a batch, a sum over its examples.
        memory: Bytes of statistics held at once.
        progress: Function that is called with the share that is done.

    Raises:
        ValueError: Inputs or gradients are not finite.
    """
    traced = trace(model, [site for site in sites(model, "linear") if site.path in paths], batches[0])
    seen = covariances(model, traced, batches, loss=loss, memory=memory, spectra=True, progress=progress)
    curvature: dict[str, Tensor] = {}
    for site, (statistics,) in seen:
        assert statistics.gradients is not None
        curvature[site.path] = statistics.gradients
    return curvature
