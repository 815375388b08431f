"""The ways to hold each weight, in a number of bits and with a correction of some rank: what they cost and lose.

What a weight loses in few bits is measured, one weight at a time, by how far the outputs move; for other ways it goes
as the squared error of the layer's outputs. Corrections are those of `greenformers.solve.low_rank_rest`, whose error is
that of the singular values that are dropped.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from greenformers.lowrank.rank import Point
from greenformers.measure.quality import evaluating
from greenformers.solve.calibrate import covariances
from greenformers.solve.gptq import Steps, gptq
from greenformers.solve.grid import Form, Grid
from greenformers.solve.layer_by_layer import write
from greenformers.solve.loss import difference
from greenformers.solve.replay import Replay, layers
from greenformers.solve.sparsify import damped, factor
from greenformers.solve.unit_curves import EXAMPLES, spread, total
from greenformers.solve.walk import Site
from greenformers.solve.watch import Batch, Loss, Trace, call

BITS = (2, 3, 4, 5, 6, 8)
MEASURED = (2, 4)
"""Bits at which a weight's loss is measured; between and beyond these it follows its error."""

RANKS = (1 / 32, 1 / 16, 1 / 8)
"""Ranks of corrections, as shares of the smaller side of a weight."""


@dataclass(frozen=True)
class Way:
    """A way to hold a weight.

    Attributes:
        bits: Bits of its numbers.
        rank: Rank of the correction; 0 for none.
    """

    bits: int
    rank: int


def bit_points(
    model: nn.Module,
    sites: Sequence[Site],
    traced: Trace | None,
    batches: Sequence[Batch],
    form: Callable[[int], Form],
    size: Callable[[Site, Way], int],
    *,
    clip: Callable[[Site], bool] = lambda _: True,
    loss: Loss | None = None,
    memory: float = 2**30,
    progress: Callable[[float], None] = lambda _: None,
) -> dict[str, list[Point[Way]]]:
    """The cost, in bytes, and the loss of each way to hold each weight, by path.

    Args:
        model: The network, left as it was.
        sites: Linear layers, embeddings and experts.
        traced: What `trace` saw of those linear layers whose inputs are looked at; the others have no corrections.
        batches: Batches of examples, all to round with and some to judge by.
        form: The form of the grids of a number of bits.
        size: The bytes of a weight held in a way.
        clip: Whether a weight gets narrower ranges where these lose less.
        loss: Loss of the model on a batch, a sum over its examples; by default its own, or how far its outputs move.
        memory: Bytes of statistics, and of outputs of finished layers, that may be held.
        progress: Function that is called with the share that is done.
    """
    few = spread(batches, EXAMPLES)
    points: dict[str, list[Point[Way]]] = {}
    with evaluating(model), torch.no_grad():
        replay = Replay(model, layers(model, lambda: call(model, few[0])), len(few), memory / 2)
        risen = difference(model, few, loss)
        base = sum(risen(number) for number in range(len(few)))

    def see(site: Site, ways: dict[Way, float], rounded: dict[int, Tensor]) -> None:
        with evaluating(model), torch.no_grad():
            slopes = {}
            for bits in MEASURED:
                with _held(site, rounded[bits]):
                    rise = max(total(risen, replay) - base, 0.0)
                slopes[bits] = rise / max(ways[Way(bits, 0)], 1e-300)
        low, high = (slopes[bits] for bits in MEASURED)
        high = high or low  # by chance nothing is lost at more bits
        between = (low + high) / 2
        points[site.path] = [
            Point(way, size(site, way), far * {2: low, 3: between}.get(way.bits, high)) for way, far in ways.items()
        ]
        progress(len(points) / len(sites))

    looked_at = {site.path for group in (traced.groups if traced else ()) for site in group}
    for site in (site for site in sites if site.path not in looked_at):
        W = site.stacked().float()
        grids = {bits: Grid.of(W, form(bits), felt=W.new_ones(site.n) if clip(site) else None) for bits in BITS}
        rounded = {bits: grid.values(grid.round(W)) for bits, grid in grids.items()}
        see(site, {Way(bits, 0): (W - Q).square().sum().item() for bits, Q in rounded.items()}, rounded)
    first = traced.first_readers if traced else {}  # where passes begin
    for site, (statistics,) in covariances(model, traced, batches, memory=memory / 2) if traced else ():
        with evaluating(model), torch.no_grad():
            replay.advance(first[site.path], lambda number: call(model, few[number]))
        assert statistics.inputs is not None
        see(site, *_ways(site, statistics.inputs, form, clip(site)))
    return points


def _ways(site: Site, C: Tensor, form: Callable[[int], Form], clip: bool) -> tuple[dict[Way, float], dict[int, Tensor]]:
    """The squared error of the outputs in each way, and the rounded weights by bits."""
    W, S, steps = site.matrices()[0].double(), factor(damped(C.double())), Steps.of(C)
    smaller = min(site.m, site.n)
    ways, rounded = dict[Way, float](), dict[int, Tensor]()
    for bits in BITS:
        q, grid = gptq(W, C, form(bits), clip=clip, steps=steps)
        rounded[bits] = grid.values(q)
        missed = (W - rounded[bits]) @ S
        # Squares of singular values, as eigenvalues of the smaller product: eight times as fast.
        energies = (
            torch.linalg.eigvalsh(missed @ missed.T if site.m < site.n else missed.T @ missed).flip(0).clamp(min=0)
        )
        for rank in (0, *sorted({max(1, round(share * smaller)) for share in RANKS})):
            ways[Way(bits, rank)] = energies[rank:].sum().item()
    return ways, rounded


@contextmanager
def _held(site: Site, W: Tensor) -> Iterator[None]:
    """A `with` block in which a layer has another weight."""
    weight: Any = site.module.weight
    before = weight.detach().clone()
    try:
        write(site, W)
        yield
    finally:
        with torch.no_grad():
            weight.copy_(before)
