"""The work of a network, from one layer of it in one of its slices: as layers and slices are alike, it is that often.

Tracing every layer and slice of a network would take minutes for all variants; this takes seconds.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from greenformers.lowrank.feed_forward import slice_length
from greenformers.measure.grid import BASELINE, Cell, Network, Stack, ranked
from greenformers.measure.parameters import parameters
from greenformers.measure.trace import Work, trace

BYTES = 4.0
"""Of a number in float32."""

LOW_RANK = "lrt"


@dataclass(frozen=True)
class Amount:
    """What a network is made of and does in a call.

    Attributes:
        layers: Number of layers.
        parameters: Number of parameters of the layers.
        work: Work of a call.
        own: Whether the mechanism has linear layers of its own, or shortens the inputs of those of the layer.
    """

    layers: int
    parameters: int
    work: Work
    own: bool = False

    @property
    def features(self) -> list[float]:
        """What time depends on: the features of the work, and layers."""
        return [*self.work.features(), float(self.layers)]

    @property
    def memory(self) -> float:
        """Bytes of weights and of the peak of other tensors, in training with gradients."""
        return BYTES * self.parameters + self.work.peak


class Amounts:
    """Amounts of the variants of a network, each found once.

    A variant with low rank is not looked at where its mechanism leaves the linear layers of the block as they are:
    its work is that of the mechanism with dense layers, and the difference that low rank makes to the dense network.

    Args:
        network: Sizes of the network.
        batch: Sequences at once.
        mode: "inference" or "training".
        device: Device that calls would run on.
    """

    def __init__(self, network: Network, batch: int, mode: str, device: str = "cpu") -> None:
        self.network, self.batch, self.mode, self.device = network, batch, mode, device
        self._known: dict[Cell, Amount] = {}

    def of(self, cell: Cell) -> Amount:
        """The amount of a variant."""
        if cell not in self._known:
            self._known[cell] = self._composed(cell) or amount(self.network, cell, self.batch, self.mode, self.device)
        return self._known[cell]

    def _composed(self, cell: Cell) -> Amount | None:
        low, plus, name = cell.variant.partition("+")
        if (low, plus) != (LOW_RANK, "+"):
            return None
        alone = self.of(replace(cell, variant=name, rank=cell.rank if ranked(name) else None))
        if alone.own:
            return None
        with_, without = self.of(replace(cell, variant=LOW_RANK)), self.of(replace(cell, variant=BASELINE, rank=None))
        work = Work()
        for key in (*Work.FEATURES, "peak"):
            setattr(work, key, getattr(alone.work, key) + getattr(with_.work, key) - getattr(without.work, key))
        return Amount(alone.layers, alone.parameters + with_.parameters - without.parameters, work)


def amount(network: Network, cell: Cell, batch: int, mode: str, device: str = "cpu") -> Amount:
    """What a network is made of and does in a call.

    Args:
        network: Sizes of the network.
        cell: Variant, rank and length.
        batch: Sequences at once.
        mode: "inference" or "training".
        device: Device that the call would run on.
    """
    training, further = mode == "training", network.layers - 1
    rows = batch
    if device == "cpu" and not training:
        rows = min(batch, max(1, slice_length(network.feed_forward) // cell.length))
    built: list[Any] = []

    def build() -> Stack:
        built.append(Stack(replace(network, layers=1), cell))
        return built[0]

    layer = trace(
        build, (rows, cell.length, network.hidden), training=training, device=device, through=further > 0,
        within="layers.0",
    )  # fmt: skip
    before, whole = layer.before or Work(), Work()
    for name in Work.FEATURES:
        once = getattr(before, name)
        setattr(whole, name, once + (getattr(layer, name) - once) * network.layers * batch / rows)
    if training:  # of each further layer what the backward pass needs is alive, later its gradients
        whole.peak = layer.peak + further * max(layer.saved, layer.gradients)
    else:
        whole.peak = _peak(layer.peak, math.ceil(batch / rows), BYTES * batch * cell.length * network.hidden, further)
        if rows < batch:  # the slices of the output are brought together
            whole.elementwise += 2 * BYTES * batch * cell.length * network.hidden * network.layers
            whole.operations += network.layers
    mechanism = getattr(getattr(built[0].layers[0], "attention", None), "mechanism", None)
    plain = mechanism is not None and mechanism.projections == ("q", "k", "v") and not mechanism.can_reduce
    return Amount(network.layers, network.layers * parameters(built[0]), whole, own=not plain)


def _peak(slice_: float, slices: int, out: float, further: int) -> float:
    """Peak of a forward pass in slices, whose outputs of `out` bytes are brought together."""
    peak = slice_ if slices == 1 else max(slice_ + out * (slices - 1) / slices, 2 * out)
    return peak + (out if further else 0.0)
