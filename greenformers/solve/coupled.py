"""Units of a network that can only be removed together: rows of linear layers, and columns of the one that reads them.

| unit | rows of | columns of |
|---|---|---|
| neuron | the first linear layer of a feed-forward layer (of gate and up projection) | the second one |
| head | the projections of queries, keys and values | the projection of outputs |
| group of heads that share keys and values | the same, with all queries of the group | the same |
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn

from greenformers.data._pooling import pooling_of
from greenformers.measure.quality import evaluating
from greenformers.model._transformers import HEAD_SIZES, TransposedLinear
from greenformers.solve.loss import output
from greenformers.solve.units import put
from greenformers.solve.watch import Batch, by_name, call

EXACT = 1e-3
"""Largest difference of outputs, relative to the largest, between units that are gone and units whose output is 0."""


def exact(model: nn.Module) -> float:
    """The largest difference, as a share of the largest output, by which a network computes the same.

    In half precision another order of sums is seen in the outputs.
    """
    eps = max((torch.finfo(x.dtype).eps for x in model.parameters() if x.is_floating_point()), default=0.0)
    return max(EXACT, 16 * eps)


@dataclass(frozen=True)
class Coupled:
    """The units of one layer.

    Attributes:
        kind: "neurons" or "heads".
        first: Rows of each unit (U, rows) in the weights that make them, by path.
        second: Path of the linear layer that reads them.
        columns: Columns of each unit (U, columns) in its weight.
        calls: How often a pass calls it.
    """

    kind: str
    first: Mapping[str, Tensor]
    second: str
    columns: Tensor
    calls: int

    @property
    def count(self) -> int:
        """Number of units U."""
        return len(self.columns)

    @property
    def paths(self) -> list[str]:
        """Paths of all linear layers, that which reads the units last."""
        return [*self.first, self.second]

    @property
    def around(self) -> str:
        """Path of the innermost module around the layers that make the units."""
        return common(list(self.first))

    def of_units(self, x: Tensor) -> Tensor:
        """Sums (..., U) over the columns of each unit, of values (..., n) at the inputs of the second layer."""
        return x[..., self.columns].sum(-1)


def common(paths: Sequence[str]) -> str:
    """Path of the innermost module around modules, none of which it is."""
    names = zip(*(path.split(".")[:-1] for path in paths), strict=False)
    return ".".join(at[0] for at in takewhile(lambda at: len(set(at)) == 1, names))


def remove(model: nn.Module, layer: Coupled, left: Tensor) -> dict[str, int]:
    """Remove all units but those with the numbers `left` from a layer.

    Returns:
        Attributes by which the module around it counts its heads, with the values that they have now.
    """
    for path, rows in layer.first.items():
        put(model, path, part(model.get_submodule(path), rows=rows[left].flatten().sort().values))
    second = model.get_submodule(layer.second)
    put(model, layer.second, part(second, columns=layer.columns[left].flatten().sort().values))
    sizes: dict[str, int] = {}
    if layer.kind == "heads":
        around = model.get_submodule(layer.around)
        for name in HEAD_SIZES:
            size = vars(around).get(name)
            if type(size) is int and size * len(left) % layer.count == 0:
                sizes[name] = size * len(left) // layer.count
                setattr(around, name, sizes[name])
    return sizes


def among(layer: Coupled, left: Tensor) -> Coupled:
    """The units of a layer with the numbers `left` once the others are gone: where their rows and columns are then."""

    def moved(units: Tensor) -> Tensor:
        staying = units[left]
        return torch.searchsorted(staying.flatten().sort().values, staying)

    return replace(layer, first={path: moved(rows) for path, rows in layer.first.items()}, columns=moved(layer.columns))


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


def part(module: nn.Module, *, rows: Tensor | None = None, columns: Tensor | None = None) -> nn.Module:
    """A linear layer of the same kind with some of its outputs (rows), or of its inputs (columns)."""
    given: Any = module
    sizes = {name: None if part is None else len(part) for name, part in (("rows", rows), ("columns", columns))}
    smaller: Any = empty(module, **sizes)
    transposed = isinstance(given, TransposedLinear)
    weight, bias = given.weight.detach(), given.bias
    rows, columns = (None if part is None else part.to(weight.device) for part in (rows, columns))
    with torch.no_grad():
        if rows is not None:
            weight, bias = weight[:, rows] if transposed else weight[rows], bias if bias is None else bias[rows]
        if columns is not None:
            weight = weight[columns] if transposed else weight[:, columns]
        smaller.weight.copy_(weight)
        if bias is not None:
            smaller.bias.copy_(bias)
    return smaller


def silenced(model: nn.Module, layers: Sequence[Coupled], left: Mapping[str, Tensor], batch: Batch) -> Tensor:
    """The output of a batch where all units but those left are 0: what their removal must give."""

    def silence(mask: Tensor) -> Callable[..., Any]:
        return lambda _, args: (args[0] * mask.to(args[0]), *args[1:])

    with ExitStack() as stack, evaluating(model), torch.no_grad():
        for layer in layers:
            mask = torch.zeros(layer.columns.numel())
            mask[layer.columns[left[layer.second]]] = 1
            stack.callback(model.get_submodule(layer.second).register_forward_pre_hook(silence(mask)).remove)
        return output(call(model, batch), by_name(model, batch), pooling_of(model))


def check_removed(model: nn.Module, kind: str, expected: Tensor, batch: Batch) -> None:
    """Check that a network without some of its units gives what it gave with these at 0.

    Raises:
        ValueError: It does not: something else reads the units, or counts them. Or what it gave is not finite.
    """
    if not expected.isfinite().all():
        raise ValueError(f"what {type(model).__name__} gives with {kind} at 0 is not finite: none can be removed")
    try:
        given = silenced(model, [], {}, batch)
    except (RuntimeError, ValueError, IndexError) as error:
        line = " ".join(str(error).split())
        raise ValueError(f"{type(model).__name__} reads its {kind} elsewhere too: {line}") from error
    if given.shape != expected.shape or not (given - expected).abs().max() <= exact(model) * expected.abs().max():
        raise ValueError(f"{type(model).__name__} reads its {kind} elsewhere too: none can be removed")
