"""Fewer neurons in feed-forward layers, without training. Kwon 2022, arXiv:2204.09656.

Search: which neurons have least Fisher information, over all layers, within a budget. Rearrangement: in each layer,
neurons whose effects cancel go together, by the whole Fisher block. Removal: rows of the first linear layers and
columns of the second one. Tuning: in place of a factor for each neuron (section 3.3 of the paper) the second layer is
fitted anew by least squares to the outputs of the whole network, on the inputs that the changed network gives it.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from greenformers.measure.quality import evaluating
from greenformers.model._transformers import TransposedLinear
from greenformers.solve.feed_forward import FeedForward
from greenformers.solve.replay import Reached
from greenformers.solve.units import put
from greenformers.solve.watch import Batch, call, padding, unpadded

DAMPING = 1e-3
"""Share of the mean square of the neurons that is added to each in least squares."""


def counts(fisher: Mapping[str, Tensor], share: float, multiple: int) -> dict[str, int]:
    """Number of neurons to keep in each layer, so that most Fisher information is kept of all.

    Args:
        fisher: Diagonal of F (n,) of each layer; neurons of all layers cost the same.
        share: Share of all neurons to keep.
        multiple: Number of which the numbers are multiples, for fast products.

    Raises:
        ValueError: The share is less than `multiple` neurons for each layer.
    """
    budget = int(share * sum(map(len, fisher.values())) + 1e-9)
    numbers = {path: min(multiple, len(values)) for path, values in fisher.items()}
    if budget < sum(numbers.values()):
        least = sum(numbers.values()) / sum(map(len, fisher.values()))
        raise ValueError(
            f"neurons to keep must be a share of at least {least:.2g}, {multiple} in each layer; got {share}"
        )
    steps = []
    for path, values in fisher.items():
        ordered = values.sort(descending=True).values
        for start in range(numbers[path], len(values), multiple):
            part = ordered[start : start + multiple]
            steps.append((part.mean().item(), path, len(part)))
    left = budget - sum(numbers.values())
    for _, path, size in sorted(steps, key=lambda step: -step[0]):  # within a layer they fall from step to step
        if size <= left:
            numbers[path] += size
            left -= size
    return numbers


def chosen(gradients: Tensor, keep: int) -> Tensor:
    """The neurons of a layer to keep: those with most Fisher information, rearranged by its whole block.

    The least |sum of the gradients of all dropped neurons|^2 over examples is sought: each kept neuron, from the one
    with least information on, joins the dropped ones, and the one of them returns without which that sum is least.

    Args:
        gradients: Gradients g of the gates (examples, n).
        keep: Number of neurons to keep.

    Returns:
        Their numbers (keep,), ascending.
    """
    g = gradients.double()
    own = g.square().sum(0)
    order = own.argsort(descending=True)
    staying, dropped = order[:keep].flip(0), order[keep:].clone()
    if not len(dropped) or not keep:
        return order[:keep].sort().values
    total, left = g[:, dropped].sum(1), []
    for neuron in staying:
        with_it = total + g[:, neuron]
        candidates = torch.cat([dropped, neuron[None]])
        # |t - g_s|^2 = |t|^2 - 2 <t, g_s> + |g_s|^2
        back = (own[candidates] - 2 * (with_it @ g[:, candidates])).argmin()
        left.append(candidates[back])
        total = with_it - g[:, candidates[back]]
        if back < len(dropped):
            dropped[back] = neuron
    return torch.stack(left).sort().values


def narrow(model: nn.Module, layer: FeedForward, neurons: Tensor) -> None:
    """Remove all other neurons from a feed-forward layer."""
    for path in layer.first:
        put(model, path, _part(model.get_submodule(path), rows=neurons))
    put(model, layer.second, _part(model.get_submodule(layer.second), columns=neurons))


def empty(module: nn.Module, *, rows: int | None = None, columns: int | None = None) -> nn.Module:
    """A linear layer of the same kind, without values, with other numbers of outputs (rows) or inputs (columns)."""
    given: Any = module
    n, m = given.weight.shape if isinstance(given, TransposedLinear) else given.weight.shape[::-1]
    m, n = m if rows is None else rows, n if columns is None else columns
    with torch.device("meta"):  # where nothing is drawn
        smaller: Any = (
            TransposedLinear(m, n) if isinstance(given, TransposedLinear) else nn.Linear(n, m, given.bias is not None)
        )
    smaller = smaller.to_empty(device=given.weight.device).to(given.weight.dtype).train(given.training)
    for name, parameter in smaller.named_parameters():
        parameter.requires_grad_(getattr(given, name).requires_grad)
    return smaller


def _part(module: nn.Module, *, rows: Tensor | None = None, columns: Tensor | None = None) -> nn.Module:
    given: Any = module
    sizes = {name: None if part is None else len(part) for name, part in (("rows", rows), ("columns", columns))}
    smaller: Any = empty(module, **sizes)
    transposed = isinstance(given, TransposedLinear)
    weight, bias = given.weight.detach(), given.bias
    with torch.no_grad():
        if rows is not None:
            weight, bias = weight[:, rows] if transposed else weight[rows], bias if bias is None else bias[rows]
        if columns is not None:
            weight = weight[columns] if transposed else weight[:, columns]
        smaller.weight.copy_(weight)
        if bias is not None:
            smaller.bias.copy_(bias)
    return smaller


class Outputs:
    """Least squares for the second linear layers of a changed network, one after the other.

    Args:
        model: The changed network.
        dense: The network before; its layers give the outputs to be reached.
        batches: Batches of examples.
    """

    def __init__(self, model: nn.Module, dense: nn.Module, batches: Sequence[Batch]) -> None:
        self.model, self.dense, self.batches = model, dense, batches

    def fit(self, path: str, calls: int) -> None:
        """Fit weight and bias of a layer: least |W h + b - y|^2, damped towards the weight as it is.

        Args:
            path: Path of the layer.
            calls: How often a pass calls it.
        """
        layer: Any = self.model.get_submodule(path)
        transposed = isinstance(layer, TransposedLinear)
        weight = (layer.weight if transposed else layer.weight.T).detach().double().cpu()  # (n, m)
        C, cross = weight.new_zeros(len(weight), len(weight)), torch.zeros_like(weight)
        h_sum, y_sum, count = C[0].clone(), cross[0].clone(), 0
        for batch in self.batches:
            h = self._watched(self.model, path, batch, calls, output=False)
            y = self._watched(self.dense, path, batch, calls, output=True)
            C, cross = C + h.T @ h, cross + h.T @ y
            h_sum, y_sum, count = h_sum + h.sum(0), y_sum + y.sum(0), count + len(h)
        if layer.bias is not None:  # it makes up for the means
            C, cross = C - torch.outer(h_sum, h_sum) / count, cross - torch.outer(h_sum, y_sum) / count
        damping = DAMPING * C.diagonal().mean().clamp(min=torch.finfo(C.dtype).tiny)
        fitted = weight + torch.linalg.solve(C + damping * torch.eye(len(C), dtype=C.dtype), cross - C @ weight)
        with torch.no_grad():
            layer.weight.copy_(fitted if transposed else fitted.T)
            if layer.bias is not None:
                layer.bias.copy_((y_sum - h_sum @ fitted) / count)

    def _watched(self, model: nn.Module, path: str, batch: Batch, calls: int, *, output: bool) -> Tensor:
        """The inputs or outputs of a layer on a batch, at positions that are no padding."""
        parts: list[Tensor] = []

        def see(_: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
            x = out if output else args[0]
            parts.append(unpadded(x, x.shape[:-1], masks.at(args[0])).float().cpu())
            if len(parts) == calls:
                raise Reached

        handle = model.get_submodule(path).register_forward_hook(see)
        try:
            with evaluating(model), torch.no_grad(), padding(model) as masks, suppress(Reached):
                masks.begin(batch)
                call(model, batch)
        finally:
            handle.remove()
        return torch.cat(parts)
