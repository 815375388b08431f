"""AA-SVD: each map is factorised for the inputs it will get, changed by what has been factorised before it.

Maps are taken in the order of execution. For each, every batch runs through the network twice, as it was and as it is
by now, from the last finished layer up to that map: two such passes a group of maps that read the same tensor, and
three d x d sums at a time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from greenformers.lowrank.factorize import Statistics
from greenformers.measure.quality import evaluating
from greenformers.solve.calibrate import Batch, Hook, Trace, call, has_bias, hooked, kept, padding, rows
from greenformers.solve.replay import Reached, Replay, layers
from greenformers.solve.solve import Solved, solve
from greenformers.solve.walk import Site, filled, put

FAST = ("activation_relu_or_gelu", "use_nested_tensor")
"""What `refuse_fast_path` changes."""


class Gradients:
    """G of all maps, for `sequential_loss`: on disk, as only one map's is looked at at a time.

    Args:
        folder: an empty one.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._places: dict[str, Path] = {}

    def keep(self, site: Site, seen: Sequence[Statistics]) -> None:
        """Store those of a site; an embedding has none."""
        found = {str(g): at.gradients.contiguous() for g, at in enumerate(seen) if at.gradients is not None}
        if found:
            place = self._places[site.path] = self._folder / f"{len(self._places)}.safetensors"
            save_file(found, place)

    def given(self, site: Site, seen: list[Statistics]) -> list[Statistics]:
        """The statistics of a site with its G."""
        if site.path not in self._places:
            return seen
        found = load_file(self._places[site.path], device=str(site.matrices().device))
        return [replace(at, gradients=found[str(g)]) for g, at in enumerate(seen)]


def sequential(
    model: nn.Module,
    found: Trace,
    ranks: Mapping[str, int],
    batches: Sequence[Batch],
    *,
    gradients: Gradients | None = None,
    memory: float = 2**30,
    progress: Callable[[float], None] = lambda _: None,
) -> dict[str, Solved]:
    """Factorise the maps with a rank, one group after the other. The network is as it was when this returns or raises.

    Args:
        model: with its dense maps.
        found: of `trace`.
        ranks: by path; maps without one stay dense.
        batches: of calibration.
        gradients: for `sequential_loss`.
        memory: bytes of the outputs of finished layers; where they need more, every pass begins at the beginning.
        progress: called with the share that is done.
    """
    groups = [group for group in ([site for site in group if site.path in ranks] for group in found.groups) if group]
    solved: dict[str, Solved] = {}
    passes = _Passes(model, batches, memory)
    solver = "sequential" if gradients is None else "sequential_loss"
    with evaluating(model), torch.no_grad():
        for index, group in enumerate(groups):
            sums = passes.sums(group[0], len(found.shapes[group[0].path]))
            for site in group:
                seen = _statistics(site, sums)
                seen = seen if gradients is None else gradients.given(site, seen)
                part = solve(site, ranks[site.path], "activation" if site.kind == "embedding" else solver, seen)
                solved[site.path] = part
                passes.units.update(filled(model, site, part.decoder, part.encoder, part.shift(ranks[site.path])))
            progress((index + 1) / len(groups))
    return solved


class _Passes:
    """The network as it was and as it is by now, run side by side.

    Attributes:
        units: what has been factorised, by path.
    """

    def __init__(self, model: nn.Module, batches: Sequence[Batch], memory: float) -> None:
        self.model, self.batches, self.units = model, batches, dict[str, nn.Module]()
        with evaluating(model), torch.no_grad():
            order = layers(model, lambda: call(model, batches[0]))
        self.before, self.now = (Replay(model, order, len(batches), memory / 2) for _ in range(2))

    def sums(self, site: Site, calls: int) -> list[Tensor]:
        """X^ X^^T, X X^^T and X X^T of a site, their sums over positions, and how many there are."""
        self.before.advance(site.path, lambda number: call(self.model, self.batches[number]))
        with placed(self.model, self.units):
            self.now.advance(site.path, lambda number: call(self.model, self.batches[number]))
        found = self._summed(site, calls)
        if not (self.before.off and self.now.off) and not all(part.isfinite().all() for part in found):
            self.before.stop()  # the network reads layers that are not kept
            self.now.stop()
            found = self._summed(site, calls)
        return found

    def _summed(self, site: Site, calls: int) -> list[Tensor]:
        sums: list[Tensor] = []
        for number, batch in enumerate(self.batches):
            with self.before.resumed(number):
                before = _inputs(self.model, site, batch, calls)
            units = {path: unit for path, unit in self.units.items() if path not in site.paths}
            with placed(self.model, units), self.now.resumed(number):
                after = _inputs(self.model, site, batch, calls)
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


def _inputs(model: nn.Module, site: Site, batch: Batch, calls: int) -> Tensor:
    found: list[Tensor] = []

    def hook(_: nn.Module, args: tuple[Tensor, ...], __: object) -> None:
        x, given = args[0], masks.at(args[0])
        found.append(kept(x, x.shape, given) if site.kind == "embedding" else rows(site, x, given))
        if len(found) == calls:
            raise Reached

    hooks: list[tuple[Site, Hook]] = [(site, hook)]
    with padding(model) as masks, hooked(model, hooks), suppress(Reached):
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
