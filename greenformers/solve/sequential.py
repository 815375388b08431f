"""AA-SVD: each map is factorised for the inputs it will get, changed by what has been factorised before it.

Maps are taken in the order of execution, in groups that read the same tensor. For each group every batch runs through
the network as it is by now, from the last finished layer up to that group. What the groups see in the network as it was
is kept for as many as fit the memory, so that one pass of that serves them all; of a map with fewer outputs than inputs
its outputs are kept, as they say all that is needed: the loss |Y - D E X^|^2 depends on X^ X^^T, Y X^^T and |Y|^2.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from greenformers.lowrank.factorize import Statistics
from greenformers.measure.quality import evaluating
from greenformers.solve.calibrate import Batch, Hook, Sums, Trace, call, has_bias, hooked, kept, padding, rows
from greenformers.solve.replay import Reached, Replay, layers
from greenformers.solve.solve import Solved, solve
from greenformers.solve.walk import Site, filled, put

FAST = ("activation_relu_or_gelu", "use_nested_tensor")
"""What `refuse_fast_path` changes."""


WIDE = (torch.float32, torch.float64)


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
        memory: bytes, one half of what the maps see in the dense network, the other of the outputs of finished layers;
            where the latter need more, every pass begins at the beginning.
        progress: called with the share that is done.
    """
    groups = [group for group in ([site for site in group if site.path in ranks] for group in found.groups) if group]
    solved: dict[str, Solved] = {}
    passes = _Passes(model, groups, {path: len(shapes) for path, shapes in found.shapes.items()}, batches, memory)
    solver = "sequential" if gradients is None else "sequential_loss"
    with evaluating(model), torch.no_grad():
        for index, group in enumerate(groups):
            sums = passes.sums(index)
            for site in group:
                seen = _statistics(site, sums, gradients)
                part = solve(site, ranks[site.path], "activation" if site.kind == "embedding" else solver, seen)
                solved[site.path] = part
                passes.units.update(filled(model, site, part.decoder, part.encoder, part.shift(ranks[site.path])))
            progress((index + 1) / len(groups))
    return solved


class _Passes:
    """The network as it was and as it is by now, run side by side.

    Attributes:
        units: what has been factorised, by path.
        ahead: what groups see in the network as it was, by index: of each batch the rows, by key (see `_rows_of`).
    """

    def __init__(
        self,
        model: nn.Module,
        groups: Sequence[list[Site]],
        calls: Mapping[str, int],
        batches: Sequence[Batch],
        memory: float,
    ) -> None:
        self.model, self.groups, self.calls, self.batches, self.memory = model, groups, calls, batches, memory
        self.units: dict[str, nn.Module] = {}
        self.ahead: dict[int, list[_Rows]] = {}
        with evaluating(model), torch.no_grad():
            order = layers(model, lambda: call(model, batches[0]))
        self.before, self.now = (Replay(model, order, len(batches), memory / 4) for _ in range(2))

    def sums(self, index: int) -> dict[Hashable, Tensor]:
        """Of a group the sums over positions that its statistics are made of, by what they are of."""
        site = self.groups[index][0]
        if site.kind != "embedding" and index not in self.ahead:
            self.before.advance(site.path, lambda number: call(self.model, self.batches[number]))
            self._look_ahead(index)
        with placed(self.model, self.units):
            self.now.advance(site.path, lambda number: call(self.model, self.batches[number]))
        found = self._summed(index)
        if not (self.before.off and self.now.off) and not all(part.isfinite().all() for part in found.values()):
            self.before.stop()  # the network reads layers that are not kept
            self.now.stop()
            self._look_ahead(index)
            found = self._summed(index)
        self.ahead.pop(index, None)
        return found

    def _look_ahead(self, index: int) -> None:
        """Keep the rows of this group and of as many after it as fit the memory; none, if those of this one do not."""
        self.ahead = {at: [] for at in range(index, len(self.groups)) if self.groups[at][0].kind != "embedding"}
        held = 0
        for number in range(len(self.batches)):
            for at, part in self._dense(number, list(self.ahead)).items():
                self.ahead[at].append(part)
                held += _bytes(part)
            while held > self.memory / 2:
                _, dropped = self.ahead.popitem()
                held -= sum(map(_bytes, dropped))
            if not self.ahead:
                return

    def _dense(self, number: int, wanted: Sequence[int]) -> "dict[int, _Rows]":
        """The rows of groups in the network as it was, by index."""
        found: dict[int, _Rows] = {index: {} for index in wanted}
        keys = [(index, key, site) for index in wanted for key, site in _rows_of(self.groups[index])]
        left = sum(self.calls[site.path] for _, _, site in keys)

        def note(index: int, key: str, site: Site) -> Hook:
            def hook(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
                nonlocal left
                given = masks.at(args[0])
                if key == INPUTS:
                    seen = rows(site, args[0], given)
                else:
                    bias = getattr(module, "bias", None)
                    seen = kept(out if bias is None else out - bias, out.shape[:-1], given)[None]
                found[index].setdefault(key, []).append(seen.clone())
                left -= 1
                if not left:
                    raise Reached

            return hook

        hooks = [(site, note(index, key, site)) for index, key, site in keys]
        with self.before.resumed(number), padding(self.model) as masks, hooked(self.model, hooks), suppress(Reached):
            masks.begin(self.batches[number])
            call(self.model, self.batches[number])
        return found

    def _now(self, site: Site, numbers: Iterable[int]) -> Iterator[Tensor]:
        """The rows of a site in the network as it is by now, of each batch; of an embedding the entries looked up."""
        found: list[Tensor] = []

        def hook(_: nn.Module, args: tuple[Tensor, ...], __: object) -> None:
            x, given = args[0], masks.at(args[0])
            found.append(kept(x, x.shape, given) if site.kind == "embedding" else rows(site, x, given))
            if len(found) == self.calls[site.path]:
                raise Reached

        units = {path: unit for path, unit in self.units.items() if path not in site.paths}
        with (
            placed(self.model, units),
            padding(self.model) as masks,
            hooked(self.model, [(site, hook)], before=True),
        ):
            for number in numbers:
                found.clear()
                masks.begin(self.batches[number])
                with self.now.resumed(number), suppress(Reached):
                    call(self.model, self.batches[number])
                yield torch.cat(found, -1 if site.kind == "embedding" else -2)

    def _beside(self, index: int) -> "Iterator[tuple[Tensor, _Rows]]":
        """Of each batch the rows of a group in the network as it is by now, and as it was."""
        site, numbers = self.groups[index][0], range(len(self.batches))
        ahead = [{}] * len(numbers) if site.kind == "embedding" else self.ahead.get(index)
        if ahead is not None:
            yield from zip(self._now(site, numbers), ahead, strict=True)
            return
        for number in numbers:
            (x,) = self._now(site, [number])  # to its end: the network is dense again
            yield x, self._dense(number, [index])[index]

    def _summed(self, index: int) -> dict[Hashable, Tensor]:
        site, sums = self.groups[index][0], Sums()
        for x, dense in self._beside(index):
            if site.kind == "embedding":
                sums.add("counts", torch.bincount(x, minlength=site.m))
                continue
            sums.products("C", x)
            sums.add("x", x.sum(1))
            sums.add("count", x.new_tensor(x.shape[1]))
            for key, parts in dense.items():
                before = torch.cat(parts, -2)
                sums.products((key, "cross"), before, x)
                sums.products((key, "own"), before)
                sums.add((key, "mean"), before.sum(1))
        return sums.done()


_Rows = dict[str, list[Tensor]]
"""By key, of each call: (g, positions, n)."""

INPUTS = "inputs"
"""The key of the rows that a group reads; the others are the paths of maps, and their rows what they give."""


def _rows_of(group: Sequence[Site]) -> list[tuple[str, Site]]:
    """What is kept of a group in the network as it was, by key: its inputs, or the outputs where they are fewer."""
    first = group[0]
    # Of half precision outputs are rounded, products of inputs and weights are not.
    if first.kind == "linear" and sum(site.m for site in group) < first.n and first.matrices().dtype in WIDE:
        return [(site.path, site) for site in group]
    return [(INPUTS, first)]


def _bytes(part: _Rows) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensors in part.values() for tensor in tensors)


def _statistics(site: Site, sums: Mapping[Hashable, Tensor], gradients: Gradients | None) -> list[Statistics]:
    if site.kind == "embedding":
        return [Statistics(sums["counts"])]
    key = INPUTS if (INPUTS, "own") in sums else site.path
    C, x, count = sums["C"], sums["x"], sums["count"]
    cross, own, before = (sums[key, name] for name in ("cross", "own", "mean"))
    if has_bias(site):  # which makes up for the means
        x, before = x / count, before / count
        C = C - count * torch.einsum("gi,gj->gij", x, x)
        cross = cross - count * torch.einsum("gi,gj->gij", before, x)
        own = own - count * torch.einsum("gi,gj->gij", before, before)
    seen = [Statistics(part) for part in C]
    seen = seen if gradients is None else gradients.given(site, seen)
    W = site.matrices().double()
    found = []
    for g, at in enumerate(seen):
        G = at.gradients
        if key == INPUTS:
            WC, GW = W[g] @ own[g], W[g] if G is None else G @ W[g]
            target, total, mean = W[g] @ cross[g], (WC * GW).sum(), W[g] @ before[g]
        else:
            target, total, mean = cross[g], own[g].trace() if G is None else (own[g] * G).sum(), before[g]
        means = {"mean": x[g], "output_mean": mean} if has_bias(site) else {}
        found.append(replace(at, cross=target, total=total.item(), **means))
    return found


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
