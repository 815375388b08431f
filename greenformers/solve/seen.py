"""What a layer of a network is given and gives, batch by batch, as the network is by now.

The network may change from one layer to the next in the order of execution: passes begin where the last finished layer
ended, and end with the layer that is looked at.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

import torch
from torch import Tensor, nn

from greenformers.measure.quality import evaluating
from greenformers.solve.replay import Reached, Replay, layers
from greenformers.solve.share import anywhere
from greenformers.solve.watch import Batch, call, padding, positional, unpadded

T = TypeVar("T")


class Seen:
    """Inputs and outputs of the layers of a network.

    Args:
        model: The network.
        batches: Batches of examples.
        memory: Bytes of outputs of finished layers that may be held, with which passes begin where the last one ended.
    """

    def __init__(self, model: nn.Module, batches: Sequence[Batch], memory: float) -> None:
        self.model, self.batches = model, batches
        with evaluating(model), torch.no_grad():
            order = layers(model, lambda: call(model, batches[0]))
        self.replay = Replay(model, order, len(batches), memory)

    def rows(self, path: str, calls: int, others: Sequence[str] = ()) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs (positions, n) and outputs (positions, m) of a layer on each batch, float32 or wider, no padding.

        Args:
            path: Path of the layer. Layers before the one around it are finished.
            calls: How often a pass calls it.
            others: Paths of layers of the same weight, whose rows count as well.
        """
        with evaluating(self.model), torch.no_grad():
            self.replay.advance(path, lambda number: call(self.model, self.batches[number]))
        for number in range(len(self.batches)):
            rows = self._pass((path, *others), calls, number)
            if rows is not None:  # a layer of an expert may be reached by some batches only
                yield rows

    def _pass(self, paths: Sequence[str], calls: int, number: int) -> tuple[Tensor, Tensor] | None:
        given: list[Tensor] = []
        gives: list[Tensor] = []

        def see(_: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
            for x, parts in ((args[0], given), (out, gives)):
                part = unpadded(x, x.shape[:-1], masks.at(args[0]))
                parts.append(part if part.dtype == torch.float64 else part.float())
            if len(given) == calls:
                raise Reached

        layers = {id(layer): layer for layer in map(self.model.get_submodule, paths)}.values()
        handles = [layer.register_forward_hook(positional(see), with_kwargs=True) for layer in layers]
        try:
            with (
                evaluating(self.model), torch.no_grad(), padding(self.model) as masks, self.replay.resumed(number),
                suppress(Reached),
            ):  # fmt: skip
                batch = self.batches[number]
                masks.begin(batch)
                call(self.model, batch)
        finally:
            for handle in handles:
                handle.remove()
        return (torch.cat(given), torch.cat(gives)) if given else None


def summed(networks: Sequence[Seen], sums: Callable[[], T], finite: Callable[[T], bool]) -> T:
    """Sums over rows of networks, made again in full where a network turns out to read layers that are not kept.

    Args:
        networks: The networks whose rows they are of.
        sums: Function that makes them.
        finite: Whether all of them are finite: outputs that are not kept are NaN.
    """
    given = sums()
    if not finite(given) and anywhere(not all(network.replay.off for network in networks), networks[0].batches):
        for network in networks:
            network.replay.stop()
        given = sums()
    return given
