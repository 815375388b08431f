"""AA-SVD: each map is factorised for the inputs it will get, changed by what has been factorised before it.

Maps are taken in the order of execution. For each, every batch runs through the network twice, as it was and as it is
by now, up to that map: two passes a group of maps that read the same tensor, and three d x d sums at a time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn

from greenformers.compress.calibrate import Batch, Hook, Trace, call, has_bias, hooked, kept, padding, rows
from greenformers.compress.solve import Solved, solve
from greenformers.compress.walk import Site, filled, put
from greenformers.lowrank.factorize import Statistics
from greenformers.measure.quality import evaluating

FAST = ("activation_relu_or_gelu", "use_nested_tensor")
"""What `refuse_fast_path` changes."""


def sequential(
    model: nn.Module,
    found: Trace,
    ranks: Mapping[str, int],
    batches: Sequence[Batch],
    progress: Callable[[float], None] = lambda _: None,
) -> dict[str, Solved]:
    """Factorise the maps with a rank, one group after the other. The network is as it was when this returns or raises.

    Args:
        model: with its dense maps.
        found: of `trace`.
        ranks: by path; maps without one stay dense.
        batches: of calibration.
        progress: called with the share that is done.
    """
    groups = [group for group in ([site for site in group if site.path in ranks] for group in found.groups) if group]
    solved: dict[str, Solved] = {}
    units: dict[str, nn.Module] = {}
    with evaluating(model), torch.no_grad():
        for index, group in enumerate(groups):
            sums = _sums(model, group, found, units, batches)
            for site in group:
                seen = _statistics(site, sums)
                part = solve(site, ranks[site.path], "activation" if site.kind == "embedding" else "sequential", seen)
                solved[site.path] = part
                units.update(filled(model, site, part.decoder, part.encoder, part.shift(ranks[site.path])))
            progress((index + 1) / len(groups))
    return solved


def _sums(
    model: nn.Module, group: list[Site], found: Trace, units: Mapping[str, nn.Module], batches: Sequence[Batch]
) -> list[Tensor]:
    site = group[0]
    calls = len(found.shapes[site.path])
    sums: list[Tensor] = []
    for batch in batches:
        before = _inputs(model, site, batch, calls)
        with placed(model, {path: unit for path, unit in units.items() if path not in site.paths}):
            after = _inputs(model, site, batch, calls)
        if site.kind == "embedding":
            products = [torch.bincount(after, minlength=site.m).double()[None]]
        else:
            pairs = ((after, after), (before, after), (before, before))
            products = [(a.mT @ b).double() for a, b in pairs]
            products += [after.sum(1).double(), before.sum(1).double(), after.new_tensor(after.shape[1]).double()]
        sums = products if not sums else [kept.add_(new) for kept, new in zip(sums, products, strict=True)]
    return sums


def _statistics(site: Site, sums: Sequence[Tensor]) -> list[Statistics]:
    if site.kind == "embedding":
        return [Statistics(sums[0][0])]
    H, A, C, x, x0, count = sums
    if not has_bias(site):
        return [Statistics(H[g], cross=A[g], dense=C[g]) for g in range(site.groups)]
    x, x0 = x / count, x0 / count
    H = H - count * torch.einsum("gi,gj->gij", x, x)
    A = A - count * torch.einsum("gi,gj->gij", x0, x)
    C = C - count * torch.einsum("gi,gj->gij", x0, x0)
    return [Statistics(H[g], cross=A[g], dense=C[g], mean=x[g], dense_mean=x0[g]) for g in range(site.groups)]


class _Reached(Exception):  # noqa: N818
    """All inputs wanted have been seen: the rest of the network need not run."""


def _inputs(model: nn.Module, site: Site, batch: Batch, calls: int) -> Tensor:
    found: list[Tensor] = []

    def hook(_: nn.Module, args: tuple[Tensor, ...], __: object) -> None:
        x, given = args[0], masks.at(args[0])
        found.append(kept(x, x.shape, given) if site.kind == "embedding" else rows(site, x, given))
        if len(found) == calls:
            raise _Reached

    hooks: list[tuple[Site, Hook]] = [(site, hook)]
    with padding(model) as masks, hooked(model, hooks), suppress(_Reached):
        masks.begin(batch)
        call(model, batch)
    return torch.cat(found, -1 if site.kind == "embedding" else -2)


@contextmanager
def placed(model: nn.Module, units: Mapping[str, nn.Module]) -> Iterator[None]:
    """Modules at their paths in a `with` block; afterwards those that were there."""
    before = {path: model.get_submodule(path) for path in units}
    # An LED keeps torch's encoders around it from their fast path.
    fast = [(part, name, vars(part)[name]) for part in model.modules() for name in FAST if name in vars(part)]
    try:
        for path, module in units.items():
            put(model, path, module)
        yield
    finally:
        for path, module in before.items():
            put(model, path, module)
        for part, name, value in fast:
            setattr(part, name, value)
