"""What the outputs lose where one linear layer at a time is held at a rank, as measured on a few texts.

The factors are those of the solver `loss`; between the ranks that are tried, what is lost goes as the squared singular
values that are dropped.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from greenformers.measure.quality import evaluating
from greenformers.solve.calibrate import covariances
from greenformers.solve.loss import default, difference
from greenformers.solve.refit import weight_of
from greenformers.solve.replay import Replay, layers
from greenformers.solve.solve import Solved, solve
from greenformers.solve.unit_curves import EXAMPLES, spread, total
from greenformers.solve.walk import Site
from greenformers.solve.watch import Batch, Loss, Trace, call

TRIED = (0.25, 0.5, 1.0)
"""Shares of the highest rank that are tried."""


def rank_curves(
    model: nn.Module,
    traced: Trace,
    offered: Mapping[str, Sequence[int]],
    batches: Sequence[Batch],
    *,
    loss: Loss | None = None,
    memory: float = 2**30,
    seed: int = 0,
    progress: Callable[[float], None] = lambda _: None,
) -> dict[str, dict[int, float]]:
    """What is lost at each rank that a layer may get, by path.

    Args:
        model: The network, left as it was.
        traced: What `trace` saw of it: the linear layers in question.
        offered: Ranks that a layer may get, rising, by path.
        batches: Batches of examples, all to factorise with and some to judge by.
        loss: Loss of the model on a batch, a sum over its examples; by default its own, or how far its outputs move.
        memory: Bytes of statistics, and of outputs of finished layers, that may be held.
        seed: Seed of the probes of the loss.
        progress: Function that is called with the share that is done.
    """
    few = spread(batches, EXAMPLES)
    lost: dict[str, dict[int, float]] = {}
    with evaluating(model), torch.no_grad():
        replay = Replay(model, layers(model, lambda: call(model, few[0])), len(few), memory / 2)
        risen = difference(model, few, loss)
        base = sum(risen(number) for number in range(len(few)))
    seen = covariances(model, traced, batches, loss=loss or default(model, batches, seed), memory=memory / 2)
    first = traced.first_readers  # where passes begin
    for place, (site, at) in enumerate(seen):
        ranks = list(offered[site.path])
        solved = solve(site, ranks[-1], "loss", at)
        with evaluating(model), torch.no_grad():
            replay.advance(first[site.path], lambda number: call(model, few[number]))
            tried = sorted({ranks[round(share * (len(ranks) - 1))] for share in TRIED})
            measured = {rank: _lost(model, solved, rank, lambda: total(risen, replay) - base) for rank in tried}
        lost[site.path] = _between(solved, measured, ranks)
        progress((place + 1) / len(offered))
    return lost


def _lost(model: nn.Module, solved: Solved, rank: int, judge: Callable[[], float]) -> float:
    """What is lost with a weight replaced by the product of its factors, and its bias raised to the same mean."""
    site: Site = solved.site
    layer: Any = model.get_submodule(site.path)
    before = {name: parameter.detach().clone() for name, parameter in layer.named_parameters()}
    try:
        weight_of(layer).T.copy_(solved.decoder[0, :, :rank] @ solved.encoder[0, :rank])
        shift = solved.shift(rank)
        if shift is not None:
            layer.bias += shift.to(layer.bias.dtype)
        return judge()
    finally:
        for name, parameter in layer.named_parameters():
            parameter.copy_(before[name])


def _between(solved: Solved, measured: Mapping[int, float], ranks: Sequence[int]) -> dict[int, float]:
    """Losses at all ranks: what is dropped, times how much that costs at the measured ranks, which lie around."""
    assert solved.energies is not None
    dropped = (solved.energies.sum() - solved.energies.cumsum(0)).clamp_min(0).double()
    floor = 1e-12 * solved.energies.sum().item()
    each = {rank: max(dropped[min(rank, len(dropped)) - 1].item(), floor) for rank in ranks}
    at = torch.tensor(sorted(measured))
    slopes = torch.tensor([max(measured[int(rank)], 0.0) / max(each[int(rank)], 1e-300) for rank in at])
    losses: dict[int, float] = {}
    above = 0.0
    for rank in reversed(ranks):
        # A lower rank that by chance does better is no reason to take it where the higher one is paid for.
        above = losses[rank] = max(above, each[rank] * _linear(rank, at, slopes))
    return losses


def _linear(x: float, at: Tensor, values: Tensor) -> float:
    """Linear between points, and constant beyond them."""
    right = int((at < x).sum())
    if right in (0, len(at)):
        return float(values[min(right, len(at) - 1)])
    share = (x - at[right - 1]) / (at[right] - at[right - 1])
    return float(values[right - 1] * (1 - share) + values[right] * share)
