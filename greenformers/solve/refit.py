"""Least squares for linear layers that lose inputs: what is left of a weight makes up for what goes.

With fewer inputs a layer is to give what it gave with all of them, on what the network as it is now gives it: least
E |W' h + b' - (W h + b)|^2 / |W h + b|^2 over positions that are no padding, where W' is 0 at inputs that go. In place
of a factor for each unit (Kwon 2022, arXiv:2204.09656, section 3.3) all of the weight is fitted.

Not of |W' h + b' - (W h + b)|^2: a few positions of trained networks have outputs that are 10 to 40 times as large as
the others' (Sun 2024, arXiv:2402.17762), which a norm behind them takes back. Fitted to those, a layer misses all other
positions: on all-MiniLM-L6 without a quarter of its heads and neurons the correlation fell from 86.6 (not fitted) to
72; weighted, it rose to 87.0. And not of what the layer gave in the whole network, on other inputs: what these differ
by no weight can undo, and those that try it shrink.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from greenformers.measure.quality import evaluating
from greenformers.model._transformers import TransposedLinear
from greenformers.solve.replay import Reached, Replay, layers
from greenformers.solve.watch import Batch, call, padding, unpadded

DAMPING = 1e-2
"""Share of the mean square of the inputs that is added to each in least squares."""

LARGEST = 1e6
"""Most times that one position counts as much as the mean of them: those with outputs near 0 do not decide alone."""


@dataclass
class Moments:
    """Weighted moments of the inputs h of a layer.

    Attributes:
        C: Sums of h h^T (n, n), float64; about the mean where the layer has a bias, which makes up for it.
        mean: The mean of h (n,).
    """

    C: Tensor
    mean: Tensor


class Watch:
    """The moments of inputs of layers of a network, which may change from one to the next in the order of execution.

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

    def moments(self, calls: Mapping[str, int]) -> dict[str, Moments]:
        """The moments of layers, given by path with how often a pass calls them; layers before these are finished."""
        self._advance(next(iter(calls)))
        sums = self._sums(calls)
        if not all(C.isfinite().all() for C, *_ in sums.values()) and not self.replay.off:
            self.replay.stop()  # the network reads layers that are not kept
            sums = self._sums(calls)
        given = {}
        for path, (C, total, count) in sums.items():
            mean = total / count
            biased = getattr(self.model.get_submodule(path), "bias", None) is not None
            given[path] = Moments(C - count * torch.outer(mean, mean) if biased else C, mean)
        return given

    def _advance(self, path: str) -> None:
        with evaluating(self.model), torch.no_grad():
            self.replay.advance(path, lambda number: call(self.model, self.batches[number]))

    def _sums(self, calls: Mapping[str, int]) -> dict[str, list[Tensor]]:
        sums: dict[str, list[Tensor]] = {}
        missing: dict[str, int] = {}

        def see(path: str) -> Any:
            def add(_: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
                given = masks.at(args[0])
                h, y = (unpadded(x, x.shape[:-1], given).double() for x in (args[0], out))
                square = y.square().sum(1, keepdim=True)
                weight = 1 / square.clamp(min=torch.finfo(torch.float32).tiny + square.mean() / LARGEST)
                weighted = weight * h
                parts = [weighted.T @ h, weighted.sum(0), weight.sum()]
                sums[path] = [a + b for a, b in zip(sums[path], parts, strict=True)] if path in sums else parts
                missing[path] -= 1
                if not any(missing.values()):
                    raise Reached

            return add

        with evaluating(self.model), torch.no_grad(), padding(self.model) as masks, ExitStack() as stack:
            for path in calls:
                stack.callback(self.model.get_submodule(path).register_forward_hook(see(path)).remove)
            for number, batch in enumerate(self.batches):
                missing.update(calls)
                with self.replay.resumed(number), suppress(Reached):
                    masks.begin(batch)
                    call(self.model, batch)
        return sums


def weight_of(layer: nn.Module) -> Tensor:
    """The weight of a linear layer of either layout, (n, m), not copied."""
    given: Any = layer
    weight: Tensor = given.weight.detach()
    return weight if isinstance(layer, TransposedLinear) else weight.T


def fit(layer: nn.Module, columns: Tensor, moments: Moments | None) -> None:
    """Set a layer's weight to 0 at all inputs but some, and fit it at those, damped towards the weight as it is.

    Args:
        layer: A linear layer.
        columns: Numbers of the inputs that stay.
        moments: Moments of its inputs; None to fit nothing.
    """
    given: Any = layer
    weight = weight_of(layer).clone()
    goes = torch.ones(len(weight), dtype=torch.bool, device=weight.device)
    goes[columns] = False
    with torch.no_grad():
        weight_of(layer)[goes] = 0
        if moments is None:
            return
        C, W, columns = moments.C.to(weight.device), weight.double(), columns.to(weight.device)
        among = C[columns][:, columns]
        damping = DAMPING * C.diagonal().mean().clamp(min=torch.finfo(C.dtype).tiny)
        eye = torch.eye(len(among), dtype=C.dtype, device=C.device)
        change = torch.linalg.solve(among + damping * eye, C[columns][:, goes] @ W[goes])
        weight_of(layer)[columns] = (W[columns] + change).to(weight.dtype)
        if given.bias is not None:
            given.bias += (moments.mean.to(C.device) @ (W - weight_of(layer).double())).to(weight.dtype)
