"""Changes of the weights of linear layers in the order of execution, each by the inputs that the layers before it give.

The network is changed as it goes along: a layer is shown the inputs that it will have.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from greenformers.lowrank.experts import ExpertsLinear
from greenformers.solve.seen import Seen, summed
from greenformers.solve.share import first
from greenformers.solve.sums import Sums
from greenformers.solve.units import restored_by_errors
from greenformers.solve.walk import Site
from greenformers.solve.watch import Batch, Trace

CHUNK = 2**20
"""Numbers whose errors are held in float64 at once: few enough that their memory is used again."""


@dataclass(frozen=True)
class Inputs:
    """What a layer is given at positions that are no padding.

    Attributes:
        C: Sum of x x^T (n, n), float64, or of (x - mean) (x - mean)^T.
        size: Mean of the absolute values of x (n,), float64.
        mean: Mean of x (n,), float64.
    """

    C: Tensor
    size: Tensor
    mean: Tensor


Solve = Callable[[Site, Tensor, Inputs], Tensor]
"""The new weight (m, n) of a layer, of its weight and its inputs."""


def layer_by_layer(
    model: nn.Module, traced: Trace, batches: Sequence[Batch], solve: Solve, *, shift: bool = False,
    memory: float, progress: Callable[[float], None],
) -> dict[str, float]:  # fmt: skip
    """Change the weights of linear layers, in place.

    Args:
        model: The network.
        traced: The layers in groups that read the same tensor, as `trace` saw them.
        batches: Batches to calibrate with.
        solve: Function that gives new weights.
        shift: Let biases make up for what the mean input loses, (W - Q) mean. C is then about the mean, where there is
            a bias.
        memory: Bytes of outputs of finished layers that may be held.
        progress: Function that is called with the share that is done.

    Returns:
        The relative errors |(W - Q) X| / |W X| on the inputs X as changed so far, by path.

    Raises:
        ValueError: Inputs or weights are not finite. The weights are then as they were.
    """
    seen, errors = Seen(model, batches, memory), dict[str, float]()
    sites = [site for group in traced.groups for site in group]
    layers = {id(layer): layer for site in sites for layer in map(model.get_submodule, site.paths)}
    with restored_by_errors([*layers.values()]):
        for number, group in enumerate(traced.groups):
            biased = {site.path: shift and getattr(site.module, "bias", None) is not None for site in group}
            by_bias = _inputs(seen, group[0], len(traced.shapes[group[0].path]), set(biased.values()))
            for site in group:
                W = site.matrices()[0]
                if not W.isfinite().all():
                    raise ValueError(f"{site.path}: the weight holds values that are not finite")
                given = by_bias[biased[site.path]]
                Q = solve(site, W, given)
                errors[site.path] = error(W, Q, given.C)
                if biased[site.path]:
                    shifted = (W.double() - Q.double()) @ given.mean
                    for bias in _biases(model, site):
                        with torch.no_grad():
                            bias += shifted.to(bias.dtype)
                write(site, Q)
            progress((number + 1) / len(traced.groups))
    return errors


def _biases(model: nn.Module, site: Site) -> list[Tensor]:
    """The biases of all layers of a weight."""
    biases: list[Any] = [model.get_submodule(path).bias for path in site.paths]
    return list({id(bias): bias for bias in biases if bias is not None}.values())


def write(site: Site, W: Tensor) -> None:
    """Set the weight (m, n) of a linear layer or an embedding, or those of all experts, one below the other."""
    module: Any = site.module
    if isinstance(module, ExpertsLinear):
        W = W.unflatten(0, (site.groups, site.m))
    with torch.no_grad():
        module.weight.copy_(W.mT if site.turned else W)


def error(W: Tensor, Q: Tensor, C: Tensor | None = None) -> float:
    """|(W - Q) X| / |W X| with C = X X^T, else with X = I."""
    lost = total = 0.0
    rows = max(1, CHUNK // W.shape[1])
    for w, q in zip(W.split(rows), Q.split(rows), strict=True):
        gone, whole = w.double() - q.double(), w.double()
        lost += ((gone if C is None else gone @ C) * gone).sum().item()
        total += ((whole if C is None else whole @ C) * whole).sum().item()
    return (max(lost, 0.0) / total) ** 0.5 if total > 0 else 0.0


def _inputs(seen: Seen, site: Site, calls: int, about_mean: set[bool]) -> dict[bool, Inputs]:
    """The inputs of a layer, with C about the mean or as it is, or both: True stands for about the mean."""

    def sums() -> dict[bool, Inputs]:
        total = Sums(seen.batches)
        rows = (x for x, _ in seen.rows(site.path, calls, site.paths[1:]) if len(x))
        begun = next(rows, None)
        # Products are in float32: of numbers about the mean of the first ones, or nothing would be left of those that
        # hardly change.
        near = first(None if begun is None else begun.mean(0), seen.batches)
        if near is None:
            raise ValueError(f"the data does not reach {site.path!r}")
        for x in () if begun is None else chain([begun], rows):
            far = x - near
            total.products("C", far[None])
            total.add("far", far.sum(0))
            total.add("size", x.abs().sum(0))
            total.add("count", x.new_tensor(len(x)))
        done = total.done()
        count = done["count"].item()
        near, far, size = near.double(), done["far"] / count, done["size"] / count
        mean = near + far
        # In place where only one of the two is used: of 11,008 inputs each takes 1 GB.
        about = done["C"][0].addr_(far, far, alpha=-count)
        if True not in about_mean:
            return {False: Inputs(about.addr_(mean, mean, alpha=count), size, mean)}
        raw = {False: Inputs(about.addr(mean, mean, alpha=count), size, mean)} if False in about_mean else {}
        return raw | {True: Inputs(about, size, mean)}

    inputs = summed([seen], sums, lambda by: all(bool(given.C.isfinite().all()) for given in by.values()))
    if not all(bool(given.C.isfinite().all()) for given in inputs.values()):
        raise ValueError(f"the inputs of {site.path!r} are not finite on the calibration data")
    return inputs
