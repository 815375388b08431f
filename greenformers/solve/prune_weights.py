"""Zeros among the weights of a network's linear layers, in place, by the functions of `greenformers.solve.sparsify`.

Solvers that look at inputs take the layers in the order of execution, each on the inputs that the network gives it
after the layers before it have been pruned.
"""

from collections.abc import Callable, Sequence

from torch import nn

from greenformers.solve.layer_by_layer import error, layer_by_layer, write
from greenformers.solve.sparsify import magnitude, magnitude_all, sparsegpt, wanda
from greenformers.solve.walk import Site
from greenformers.solve.watch import Batch, Trace

SOLVERS = ("sparsegpt", "wanda", "magnitude", "magnitude_rows", "magnitude_all")
LOOKING = ("sparsegpt", "wanda")
"""Solvers that look at the inputs of layers."""

Progress = Callable[[float], None]


def prune_by_weights(sites: Sequence[Site], solver: str, *, keep: float, two_of_four: bool) -> dict[str, float]:
    """Prune layers by their weights alone, in place. The relative errors |W - Q| / |W|, by path."""
    weights = [site.matrices()[0] for site in sites]
    for site, W in zip(sites, weights, strict=True):
        if not W.isfinite().all():
            raise ValueError(f"{site.path}: the weight holds values that are not finite")
    if solver == "magnitude_all":
        pruned = magnitude_all(weights, keep=keep)
    else:
        per_row = solver == "magnitude_rows"
        pruned = [magnitude(W, keep=keep, rows=per_row, two_of_four=two_of_four) for W in weights]
    errors = {site.path: error(W, Q) for site, W, Q in zip(sites, weights, pruned, strict=True)}
    for site, Q in zip(sites, pruned, strict=True):
        write(site, Q)
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
    how = sparsegpt if solver == "sparsegpt" else wanda
    return layer_by_layer(
        model, traced, batches, lambda _, W, inputs: how(W, inputs.C, keep=keep, two_of_four=two_of_four),
        memory=memory, progress=progress,
    )  # fmt: skip
