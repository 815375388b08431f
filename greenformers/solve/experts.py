"""What each expert of a mixture sees: the rows that were routed to it, and the covariances of those.

Few tokens may reach an expert, fewer than its weight has inputs. A factorisation by their covariance C would keep
nothing of all other directions; so C is shrunk towards a multiple of the identity with the same trace:

    a C + (1 - a) tr(C) / n I,  a = min(1, tokens / n)

after Ledoit & Wolf 2004, doi:10.1016/S0047-259X(03)00096-4. An expert without a token has C = 0, and is factorised by
its weight alone.
"""

from collections.abc import Hashable, Iterator, Mapping

import torch
from torch import Tensor

from greenformers.lowrank.experts import Routed
from greenformers.lowrank.factorize import Statistics
from greenformers.solve.walk import Site


def rows_of(rows: Tensor, routed: Routed, given: Mapping[str, Tensor]) -> Iterator[tuple[int, Tensor]]:
    """The rows (positions, n) of each expert that has any, float32 or wider, without those of padding.

    Args:
        rows: Rows (S, n), sorted by expert.
        routed: Which rows go to which expert.
        given: Masks (B, N) of the batch, one of which may fit the layer's input.
    """
    rows = rows.detach()
    rows = rows if rows.dtype == torch.float64 else rows.float()
    mask = next((mask for mask in given.values() if mask.numel() == routed.length), None)
    for expert, (part, tokens) in enumerate(
        zip(rows.split(routed.counts), routed.tokens.split(routed.counts), strict=True)
    ):
        part = part if mask is None else part[mask.flatten()[tokens]]
        if len(part):
            yield expert, part


def statistics(site: Site, sums: Mapping[Hashable, Tensor], centred: bool) -> list[Statistics]:
    """The statistics of each expert; those of experts without a row are zero.

    Args:
        site: The weight of all experts.
        sums: Sums by (path, quantity, expert): "C" of products of inputs, "x" of inputs, "count" of rows, and "G" of
            products of gradients, if any.
        centred: Subtract from inputs their means, for which biases make up.

    Raises:
        ValueError: The sums are not finite.
    """

    def held(quantity: str, expert: int, *shape: int) -> Tensor:
        total = sums.get((site.path, quantity, expert))
        return zero.new_zeros(shape) if total is None else total.view(shape)

    zero = torch.zeros((), dtype=torch.float64, device=site.matrices().device)
    felt = any((site.path, "G", expert) in sums for expert in range(site.groups))
    by_expert = []
    for expert in range(site.groups):
        C, count = held("C", expert, site.n, site.n), held("count", expert)
        mean = held("x", expert, site.n) / count.clamp_min(1)
        G = held("G", expert, site.m, site.m) if felt else None
        for label, seen in (("inputs of", C), ("gradients in", G)):
            if seen is not None and not seen.isfinite().all():
                raise ValueError(f"the {label} expert {expert} of {site.path!r} are not finite on the calibration data")
        if centred:
            C = C - count * mean[:, None] * mean
        G = None if G is None else _shrunk(G, count) / count.clamp(min=1)
        by_expert.append(Statistics(_shrunk(C, count), gradients=G, mean=mean if centred else None))
    return by_expert


def _shrunk(C: Tensor, count: Tensor) -> Tensor:
    share = (count / len(C)).clamp(max=1)
    return share * C + (1 - share) * C.trace() / len(C) * torch.eye(len(C), dtype=C.dtype, device=C.device)
