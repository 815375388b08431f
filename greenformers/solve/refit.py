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

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from greenformers.model._transformers import TransposedLinear
from greenformers.solve.seen import Seen, summed

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


def importance(y: Tensor) -> Tensor:
    """The weights 1 / |y|^2 (positions, 1) of outputs y (positions, m)."""
    square = y.square().sum(1, keepdim=True)
    return 1 / square.clamp(min=torch.finfo(torch.float32).tiny + square.mean() / LARGEST)


def moments(seen: Seen, path: str, calls: int) -> Moments:
    """The moments of the inputs of a layer in a network as it is by now.

    Args:
        seen: The network.
        path: Path of the layer.
        calls: How often a pass calls it.

    Raises:
        ValueError: They are not finite.
    """

    def sums() -> tuple[Tensor, Tensor, Tensor]:
        C = total = count = torch.zeros((), dtype=torch.float64)
        for h, y in seen.rows(path, calls):
            h, weight = h.double(), importance(y.double())
            C, total = C.to(h.device) + (weight * h).T @ h, total.to(h.device) + (weight * h).sum(0)
            count = count.to(h.device) + weight.sum()
        return C, total, count

    C, total, count = summed([seen], sums, lambda given: bool(given[0].isfinite().all()))
    if not C.isfinite().all():
        raise ValueError(f"the inputs of {path!r} are not finite on the examples")
    mean = total / count
    biased = getattr(seen.model.get_submodule(path), "bias", None) is not None
    return Moments(C - count * torch.outer(mean, mean) if biased else C, mean)


def weight_of(layer: nn.Module) -> Tensor:
    """The weight of a linear layer of either layout, (n, m), not copied."""
    given: Any = layer
    weight: Tensor = given.weight.detach()
    return weight if isinstance(layer, TransposedLinear) else weight.T


def fit(layer: nn.Module, columns: Tensor, of_inputs: Moments | None) -> None:
    """Set a layer's weight to 0 at all inputs but some, and fit it at those, damped towards the weight as it is.

    Args:
        layer: A linear layer.
        columns: Numbers of the inputs that stay.
        of_inputs: Moments of its inputs; None to fit nothing.
    """
    given: Any = layer
    weight = weight_of(layer).clone()
    goes = torch.ones(len(weight), dtype=torch.bool, device=weight.device)
    goes[columns] = False
    with torch.no_grad():
        weight_of(layer)[goes] = 0
        if of_inputs is None:
            return
        C, W, columns = of_inputs.C.to(weight.device), weight.double(), columns.to(weight.device)
        among = C[columns][:, columns]
        damping = DAMPING * C.diagonal().mean().clamp(min=torch.finfo(C.dtype).tiny)
        eye = torch.eye(len(among), dtype=C.dtype, device=C.device)
        change = torch.linalg.solve(among + damping * eye, C[columns][:, goes] @ W[goes])
        weight_of(layer)[columns] = (W[columns] + change).to(weight.dtype)
        if given.bias is not None:
            given.bias += (of_inputs.mean.to(C.device) @ (W - weight_of(layer).double())).to(weight.dtype)
