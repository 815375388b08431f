"""The attention heads of a network, found by what they compute, not by name.

The input of an output projection is read head by head: a block of its columns depends on rows of the projections of
queries, keys and values, at many positions, and other blocks on other rows. Heads that share keys and values depend on
the same of these, and are one unit. So the projections may be apart, or one layer, in any order of their rows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from greenformers.solve.coupled import Coupled
from greenformers.solve.dependence import Dependence
from greenformers.solve.watch import Batch

Rows = dict[str, frozenset[int]]
"""Rows of linear layers, by path."""


def heads(model: nn.Module, example: Batch) -> list[Coupled]:
    """The attention layers that a batch reaches, each with its heads, in the order of execution.

    Args:
        model: The network.
        example: A batch with texts of several tokens.

    Raises:
        ValueError: There are none.
    """
    seen = Dependence(model, example)
    candidates = (_Columns(seen, path, x) for path, x in seen.inputs.items() if x.dim() == 3 and x.shape[1] > 2)
    layers = [layer for columns in candidates if (layer := columns.layer()) is not None]
    if not layers:
        raise ValueError(f"{type(model).__name__} has no attention of several heads between its linear layers")
    return layers


class _Columns:
    """On which rows of other layers the columns of a layer's input depend.

    Args:
        seen: Inputs and outputs of all layers.
        path: Path of the layer.
        x: Its input (B, N, n).
    """

    def __init__(self, seen: Dependence, path: str, x: Tensor) -> None:
        self.seen, self.path, self.x = seen, path, x
        draw = torch.Generator().manual_seed(0)
        self.probe = torch.randn(x.shape[:2], generator=draw).to(x)  # sums over positions must not cancel
        self.candidates = [(name, y) for name, y in seen.outputs.items() if name != path] if x.requires_grad else []

    def rows(self, columns: slice) -> Rows:
        """The rows of other layers, by path, on which these columns depend."""
        if not self.candidates:
            return {}
        probed = (self.x[..., columns].sum(-1) * self.probe).sum()
        slopes = torch.autograd.grad(probed, [y for _, y in self.candidates], retain_graph=True, allow_unused=True)
        touched = {
            name: frozenset(slope.flatten(0, -2).ne(0).any(0).nonzero().flatten().tolist())
            for (name, _), slope in zip(self.candidates, slopes, strict=True)
            if slope is not None
        }
        self.candidates = [(name, y) for name, y in self.candidates if touched.get(name)]
        return {name: rows for name, rows in touched.items() if rows}

    def layer(self) -> Coupled | None:
        """The heads whose outputs the columns are; None where they are none."""
        n = self.x.shape[-1]
        first = self.rows(slice(0, 1))
        if not first:
            return None
        self.candidates = [pair for pair in self.candidates if pair[0] in first]

        def together(column: int) -> int:
            rows = self.rows(slice(column, column + 1))
            return sum(len(first[name] & rows.get(name, frozenset())) for name in first)

        width, shared = 1, together(1)
        if not shared or n < 2:
            return None
        above = n  # the columns of the first head are those that share as many rows with column 0 as column 1 does
        while above - width > 1:
            middle = (width + above) // 2
            width, above = (middle, above) if together(middle) == shared else (width, middle)
        width += 1
        if n % width or n == width:
            return None
        return self._grouped([self.rows(slice(at, at + width)) for at in range(0, n, width)], width)

    def _grouped(self, by_head: Sequence[Rows], width: int) -> Coupled | None:
        groups: list[list[int]] = []
        for number, rows in enumerate(by_head):
            mine = next((group for group in groups if _meet(by_head[group[0]], rows)), None)
            if mine is None:
                groups.append([number])
            else:
                mine.append(number)
        united = [
            {name: sorted(frozenset().union(*(by_head[number].get(name, ()) for number in group))) for name in rows}
            for group in groups
            for rows in [by_head[group[0]]]
        ]
        sizes = [{name: len(rows) for name, rows in unit.items()} for unit in united]
        apart = all(
            len({row for unit in united for row in unit[name]}) == sum(size[name] for size in sizes)
            and sum(size[name] for size in sizes) == self.seen.outputs[name].shape[-1]
            for name in sizes[0]
        ) if all(size == sizes[0] for size in sizes) else False  # fmt: skip
        if len(groups) < 2 or not apart or len({len(group) for group in groups}) > 1:
            return None
        columns = [[number * width + at for number in group for at in range(width)] for group in groups]
        first = {name: torch.tensor([unit[name] for unit in united]) for name in sizes[0]}
        return Coupled("heads", first, self.path, torch.tensor(columns), self.seen.calls[self.path])


def _meet(a: Rows, b: Rows) -> bool:
    return any(a[name] & b[name] for name in a.keys() & b.keys())
