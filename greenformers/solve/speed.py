"""The seconds that a layer takes at a rank, as measured on this machine."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from greenformers.lowrank.experts import Routed
from greenformers.measure.latency import interleaved
from greenformers.solve.units import unit
from greenformers.solve.walk import Site

MEASURED = 8  # ranks of a layer that are timed; between them time is linear, as closely as a budget needs it


class Latency:
    """Seconds that layers take on the inputs of an example; layers of one shape are measured once.

    Args:
        shapes: Shapes of the inputs of each site, one for each call, by path.
        multiple: Number of which all ranks are multiples.
    """

    def __init__(self, shapes: dict[str, Sequence[torch.Size]], multiple: int) -> None:
        self.shapes, self.multiple = shapes, multiple
        self.timings: dict[object, dict[int | None, float]] = {}

    def __call__(self, site: Site, rank: int | None) -> float:
        """Seconds of a site at a rank, or dense (None); interpolated between measured ranks."""
        from greenformers.solve.budget import candidates

        key = (repr(site.module), site.matrices().dtype, tuple(self.shapes[site.path]))
        if key not in self.timings:
            ranks = candidates(site, self.multiple)
            step = max(1, -(-len(ranks) // MEASURED))
            self.timings[key] = measure(site, sorted({*ranks[::step], *ranks[-1:]}), self.shapes[site.path])
        times = self.timings[key]
        return times[rank] if rank in times else _between(times, rank)


def _between(times: dict[int | None, float], rank: int | None) -> float:
    ranks = sorted(measured_rank for measured_rank in times if measured_rank is not None)
    assert rank is not None
    below = max(measured_rank for measured_rank in ranks if measured_rank < rank)
    above = min(measured_rank for measured_rank in ranks if measured_rank > rank)
    share = (rank - below) / (above - below)
    return times[below] * (1 - share) + times[above] * share


def measure(site: Site, ranks: Sequence[int], shapes: Sequence[torch.Size]) -> dict[int | None, float]:
    """Seconds on inputs of these shapes, dense (None) and at each rank: medians of interleaved runs."""
    modules: dict[int | None, nn.Module] = {None: site.module} | {rank: _drawn(site, rank) for rank in ranks}
    weight = site.module.weight
    assert isinstance(weight, Tensor)
    inputs = [_input(site, shape, weight) for shape in shapes]
    calls = {
        str(rank): lambda network=module: [network(*given) for given in inputs] for rank, module in modules.items()
    }
    with torch.inference_mode():
        timings = interleaved(calls, repeats=7, warmup=2, min_time=0.1, device=weight.device)
    return {rank: timings[str(rank)].median for rank in modules}


def _drawn(site: Site, rank: int) -> nn.Module:
    low_rank = unit(site.module, rank)
    for parameter in low_rank.parameters():
        nn.init.normal_(parameter, std=0.02)  # uninitialised numbers may be subnormal, which multiply slowly
    return low_rank


def _input(site: Site, shape: torch.Size, weight: Tensor) -> tuple[Any, ...]:
    if site.kind == "embedding":
        return (torch.zeros(shape, dtype=torch.long, device=weight.device),)
    x = torch.randn(shape, device=weight.device).to(weight.dtype)
    if site.kind == "experts":  # rows are spread over all of them
        return x, Routed.of(torch.arange(shape[0], device=weight.device)[:, None] % site.groups, site.groups)
    return (x,)
