"""AA-SVD: each map is factorised for the inputs it will get, changed by what has been factorised before it.

Maps are taken in the order of execution, in groups that read the same tensor. For each group every batch runs through
the network as it is by now, from the last finished layer up to that group. What the groups see in the network as it was
is kept for as many as fit the memory, so that one pass of that serves them all; of a map with fewer outputs than inputs
its outputs are kept, as they say all that is needed: the loss |Y - D E X^|^2 depends on X^ X^^T, Y X^^T and |Y|^2.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from greenformers.lowrank.factorize import Statistics
from greenformers.measure.quality import evaluating
from greenformers.solve.calibrate import APART, DenseRows, Key, Sums, given_rows, has_bias, keys_of
from greenformers.solve.replay import Reached, Replay, layers
from greenformers.solve.solve import Solved, solve
from greenformers.solve.units import filled, put
from greenformers.solve.walk import Site
from greenformers.solve.watch import Batch, Hook, Trace, call, hooked, kept, padding, rows

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
    dense: DenseRows | None = None,
    solved: Mapping[str, Solved] | None = None,
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
        dense: what `covariances` kept of the same batches; it is emptied.
        solved: those that are factorised already; what follows sees them so.
        memory: bytes, one half of what the maps see in the dense network, the other of the outputs of finished layers;
            where the latter need more, every pass begins at the beginning.
        progress: called with the share that is done.
    """
    groups = [group for group in (_Group.of(group, ranks) for group in found.groups) if group.sites]
    solved = dict(solved or {})
    calls = {path: len(shapes) for path, shapes in found.shapes.items()}
    passes = _Passes(model, groups, calls, batches, DenseRows(memory / 2) if dense is None else dense, memory / 4)
    solver = "sequential" if gradients is None else "sequential_loss"
    with evaluating(model), torch.no_grad():
        for index, group in enumerate(groups):
            sums = passes.sums(index) if group.keys or group.sites[0].kind == "embedding" else {}
            for site in group.sites:
                if (part := solved.get(site.path)) is not None:
                    passes.put(site, part, ranks[site.path])
                    continue
                seen = _statistics(site, group.key(site), sums, gradients)
                part = solve(site, ranks[site.path], "activation" if site.kind == "embedding" else solver, seen)
                solved[site.path] = part
                passes.put(site, part, ranks[site.path])
            progress((index + 1) / len(groups))
    return solved


@dataclass(frozen=True)
class _Group:
    """Maps that read the same tensor and are to be factorised, and what is to be known of the dense network for that.

    Attributes:
        sites: the maps.
        keys: see `greenformers.solve.calibrate.keys_of`.
    """

    sites: list[Site]
    keys: dict[Key, Site]

    @classmethod
    def of(cls, group: Sequence[Site], ranks: Mapping[str, int]) -> "_Group":
        """Those of a group that have a rank."""
        keys = {key: site for key, site in keys_of(group).items() if not key[1] or key[0] in ranks}
        return cls([site for site in group if site.path in ranks], {} if group[0].kind in APART else keys)

    def key(self, site: Site) -> Key:
        """The one of a map."""
        return next((key for key in self.keys if key == (site.path, True)), next(iter(self.keys), (site.path, False)))


class _Passes:
    """The network as it was and as it is by now, run side by side.

    Args:
        model: the network.
        groups: in the order of execution.
        calls: of each map in a batch, by path.
        batches: of calibration.
        dense: holds what groups see in the network as it was.
        memory: bytes of the outputs of finished layers, of each of the two.

    Attributes:
        units: what has been factorised, by path.
    """

    def __init__(
        self,
        model: nn.Module,
        groups: Sequence[_Group],
        calls: Mapping[str, int],
        batches: Sequence[Batch],
        dense: DenseRows,
        memory: float,
    ) -> None:
        self.model, self.groups, self.calls, self.batches, self.dense = model, groups, calls, batches, dense
        self.units: dict[str, nn.Module] = {}
        with evaluating(model), torch.no_grad():
            order = layers(model, lambda: call(model, batches[0]))
        self.before, self.now = (Replay(model, order, len(batches), memory) for _ in range(2))

    def put(self, site: Site, part: Solved, rank: int) -> None:
        """Have the maps that follow see this one as factorised."""
        decoder, encoder = part.decoder[..., :rank], part.encoder[:, :rank]
        self.units.update(filled(self.model, site, decoder, encoder, part.shift(rank)))

    def sums(self, index: int) -> dict[Hashable, Tensor]:
        """Of a group the sums over positions that its statistics are made of, by what they are of."""
        path = self.groups[index].sites[0].path
        if not self.dense.holds(self.groups[index].keys):
            self.before.advance(path, lambda number: call(self.model, self.batches[number]))
            self._look_ahead(index)
        with placed(self.model, self.units):
            self.now.advance(path, lambda number: call(self.model, self.batches[number]))
        found = self._summed(index)
        if not (self.before.off and self.now.off) and not all(part.isfinite().all() for part in found.values()):
            self.before.stop()  # the network reads layers that are not kept
            self.now.stop()
            self._look_ahead(index)
            found = self._summed(index)
        return found

    def _look_ahead(self, index: int) -> None:
        """Hold what this group sees and as many after it as fit the memory; nothing, if that of this one does not."""
        wanted = {key: site for group in self.groups[index:] for key, site in group.keys.items()}
        self.dense.clear()
        self.dense.begin(wanted)
        for number in range(len(self.batches)):
            wanted = {key: site for key, site in wanted.items() if self.dense.holds([key])}
            if not wanted:
                return
            self._note(number, wanted, self.dense)

    def _note(self, number: int, wanted: Mapping[Key, Site], dense: DenseRows) -> None:
        """Run the network as it was on the batch with this number, up to the last of what is wanted."""
        left = {key: self.calls[site.path] for key, site in wanted.items()}

        def note(key: Key, site: Site) -> Hook:
            def hook(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
                given = masks.at(args[0])
                part = given_rows(site, module, out, given) if key[1] else rows(site, args[0], given)
                dense.add(key, number, part, self.calls[site.path])
                left[key] -= 1
                if all(count <= 0 for count in left.values()):
                    raise Reached

            return hook

        hooks = [(site, note(key, site)) for key, site in wanted.items()]
        with self.before.resumed(number), padding(self.model) as masks, hooked(self.model, hooks), suppress(Reached):
            masks.begin(self.batches[number])
            call(self.model, self.batches[number])

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

    def _beside(self, index: int) -> "Iterator[tuple[Tensor, dict[Key, list[Tensor]]]]":
        """Of each batch the rows of a group in the network as it is by now, and as it was."""
        group, numbers = self.groups[index], range(len(self.batches))
        site = group.sites[0]
        if self.dense.holds(group.keys):
            held = {key: self.dense.take(key) for key in group.keys}
            for number, x in enumerate(self._now(site, numbers)):
                yield x, {key: batches[number] for key, batches in held.items()}
            return
        for number in numbers:
            (x,) = self._now(site, [number])  # to its end: the network is dense again
            single = DenseRows(float("inf"))
            single.begin(group.keys)
            self._note(number, group.keys, single)
            yield x, {key: single.take(key)[number] for key in group.keys}

    def _summed(self, index: int) -> dict[Hashable, Tensor]:
        site, sums = self.groups[index].sites[0], Sums()
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


def _statistics(site: Site, key: Key, sums: Mapping[Hashable, Tensor], gradients: Gradients | None) -> list[Statistics]:
    if site.kind == "embedding":
        return [Statistics(sums["counts"])]
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
        if key[1]:  # what the map gives
            target, total, mean = cross[g], own[g].trace() if G is None else (own[g] * G).sum(), before[g]
        else:
            WC, GW = W[g] @ own[g], W[g] if G is None else G @ W[g]
            target, total, mean = W[g] @ cross[g], (WC * GW).sum(), W[g] @ before[g]
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
