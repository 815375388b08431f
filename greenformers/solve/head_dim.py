"""Heads of fewer coordinates: the rows of queries, keys and values with least weight go, the same in all of these.

The scores q k^T / sqrt(D) of heads with D' coordinates are divided by sqrt(D') by their class. So what is left is
multiplied by (D' / D)^(1/4) in queries, keys and values, and divided by it where outputs are projected.
"""

from typing import Any

import torch
from torch import Tensor, nn

from greenformers.model._transformers import TransposedLinear
from greenformers.solve.coupled import Coupled, part
from greenformers.solve.rotation import unit_columns
from greenformers.solve.units import put


def narrow_heads(model: nn.Module, layer: Coupled, before: int, now: int) -> dict[str, Tensor]:
    """Leave each head of a layer fewer coordinates, in its weights alone: what counts them is to be made anew.

    Args:
        model: The network.
        layer: Its attention heads, or groups of them.
        before: Coordinates D of a head.
        now: Coordinates D' that are left.

    Returns:
        What is left of the outputs (m,) of queries, keys and values, as a matrix (m, m') by path, float64.
    """
    rows = {path: units.view(layer.count, -1, before) for path, units in layer.first.items()}
    columns = layer.columns.view(layer.count, -1, before)
    weight = _energy(model.get_submodule(layer.second), columns, of_rows=False)
    for path, units in rows.items():
        weight = weight + _energy(model.get_submodule(path), units, of_rows=True)
    left = weight.topk(now, dim=1).indices.sort(1).values  # (U, D')
    scale = (now / before) ** 0.25
    outputs = {}
    for path, units in rows.items():
        picked = _picked(units, left)
        outputs[path] = scale * unit_columns(picked, units.numel())
        smaller: Any = part(model.get_submodule(path), rows=picked)
        _scale(smaller, scale, bias=True)
        put(model, path, smaller)
    smaller = part(model.get_submodule(layer.second), columns=_picked(columns, left))
    _scale(smaller, 1 / scale, bias=False)
    put(model, layer.second, smaller)
    return outputs


def _picked(units: Tensor, left: Tensor) -> Tensor:
    """Of rows (U, blocks, D) those at the places left (U, D'), in the order of the weight."""
    at = left[:, None].expand(-1, units.shape[1], -1).to(units.device)
    return units.gather(2, at).flatten().sort().values


def _energy(module: nn.Module, units: Tensor, *, of_rows: bool) -> Tensor:
    """Squares of weights at each coordinate of heads (U, D), as a share of their mean."""
    given: Any = module
    weight = given.weight.detach()
    outputs_first = not isinstance(module, TransposedLinear)
    square = weight.square().sum(1 if of_rows == outputs_first else 0).double().cpu()
    of_units = square[units.cpu()].sum(1)
    return of_units / of_units.mean().clamp(min=torch.finfo(torch.float64).tiny)


def _scale(module: Any, scale: float, *, bias: bool) -> None:
    with torch.no_grad():
        module.weight.mul_(scale)
        if bias and module.bias is not None:
            module.bias.mul_(scale)
