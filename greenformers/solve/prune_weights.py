"""Zeros among the weights of a network's linear layers, in place, by the functions of `greenformers.solve.sparsify`.

Solvers that look at inputs take the layers in the order of execution, each on the inputs that the network gives it
after the layers before it have been pruned.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from greenformers.model._transformers import TransposedLinear
from greenformers.solve.calibrate import Sums
from greenformers.solve.seen import Seen, summed
from greenformers.solve.sparsify import magnitude, magnitude_all, sparsegpt, wanda
from greenformers.solve.units import restored_by_errors
from greenformers.solve.walk import Site
from greenformers.solve.watch import Batch, Trace

SOLVERS = ("sparsegpt", "wanda", "magnitude", "magnitude_rows", "magnitude_all")
LOOKING = ("sparsegpt", "wanda")
"""Solvers that look at the inputs of layers."""

Progress = Callable[[float], None]


def prune_by_weights(sites: Sequence[Site], solver: str, *, keep: float, two_of_four: bool) -> dict[str, float]:
    """Prune layers by their weights alone, in place. The relative errors |W - Q| / |W|, by path."""
    weights = [_weight(site) for site in sites]
    if solver == "magnitude_all":
        pruned = magnitude_all(weights, keep=keep)
    else:
        per_row = solver == "magnitude_rows"
        pruned = [magnitude(W, keep=keep, rows=per_row, two_of_four=two_of_four) for W in weights]
    errors = {site.path: _error(W, Q) for site, W, Q in zip(sites, weights, pruned, strict=True)}
    for site, Q in zip(sites, pruned, strict=True):
        _write(site, Q)
    return errors


def prune_by_inputs(
    model: nn.Module, traced: Trace, batches: Sequence[Batch], solver: str, *, keep: float, two_of_four: bool,
    memory: float, progress: Progress,
) -> dict[str, float]:  # fmt: skip
    """Prune layers by their weights and inputs, in place, in the order of execution.

    Args:
        model: The network.
        traced: The layers in groups that read the same tensor, as `trace` saw them.
        batches: Batches to calibrate with.
        solver: "sparsegpt" or "wanda".
        keep: Share of the weights that stay.
        two_of_four: Choose among each four neighbours of a row.
        memory: Bytes of outputs of finished layers that may be held.
        progress: Function that is called with the share that is done.

    Returns:
        The relative errors |(W - Q) X| / |W X| on the inputs X as changed so far, by path.

    Raises:
        ValueError: Inputs or weights are not finite. The weights are then as they were.
    """
    solve = sparsegpt if solver == "sparsegpt" else wanda
    seen, errors = Seen(model, batches, memory), dict[str, float]()
    with restored_by_errors([site.module for group in traced.groups for site in group]):
        for number, group in enumerate(traced.groups):
            C = _products(seen, group[0], len(traced.shapes[group[0].path]))
            for site in group:
                W = _weight(site)
                if not W.isfinite().all():
                    raise ValueError(f"{site.path}: the weight holds values that are not finite")
                Q = solve(W, C, keep=keep, two_of_four=two_of_four)
                errors[site.path] = _error(W, Q, C)
                _write(site, Q)
            progress((number + 1) / len(traced.groups))
    return errors


def _products(seen: Seen, site: Site, calls: int) -> Tensor:
    """The sum of x x^T over the inputs of a layer, at positions that are no padding, (n, n) float64.

    Raises:
        ValueError: Inputs are not finite.
    """

    def sums() -> Tensor:
        total = Sums()
        for x, _ in seen.rows(site.path, calls):
            total.products("C", x[None])
        return total.done()["C"][0]

    C = summed([seen], sums, lambda given: bool(given.isfinite().all()))
    if not C.isfinite().all():
        raise ValueError(f"the inputs of {site.path!r} are not finite on the calibration data")
    return C


def _weight(site: Site) -> Tensor:
    return site.matrices()[0]


def _write(site: Site, W: Tensor) -> None:
    weight: Any = site.module.weight
    with torch.no_grad():
        weight.copy_(W.mT if isinstance(site.module, TransposedLinear) else W)


def _error(W: Tensor, Q: Tensor, C: Tensor | None = None) -> float:
    """|(W - Q) X| / |W X| with C = X X^T, else with X = I."""
    W, gone = W.double(), W.double() - Q.double()
    lost, total = ((x * x).sum() if C is None else ((x @ C) * x).sum() for x in (gone, W))
    return (max(lost.item(), 0.0) / total.item()) ** 0.5 if total > 0 else 0.0
