"""AA-SVD: each weight is factorised for the inputs X^ it will get, changed by the weights factorised before it.

Weights are taken in the order of execution, in groups that read the same tensor. For each group every batch runs
through the network as it is by now, from the last finished layer up to that group. The rows that groups see in the
dense network are kept for as many groups as fit `memory`, so that one pass of that network serves them all. For a layer
with fewer outputs than inputs its outputs Y are kept, which suffice: the loss |Y - D E X^|^2 depends on X^ X^^T, Y X^^T
and |Y|^2.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from greenformers._tensors import save_file
from greenformers.lowrank.factorize import Statistics
from greenformers.measure.quality import evaluating
from greenformers.solve.calibrate import APART, DenseRows, Key, given_rows, has_bias, keys_of
from greenformers.solve.replay import Reached, Replay, layers
from greenformers.solve.share import anywhere
from greenformers.solve.solve import Solved, solve
from greenformers.solve.sums import Sums
from greenformers.solve.units import filled, put
from greenformers.solve.walk import Site
from greenformers.solve.watch import Batch, Hook, Trace, call, hooked, padding, rows, unpadded

FAST = ("activation_relu_or_gelu", "use_nested_tensor")
"""Attributes of modules that `refuse_fast_path` changes."""


class Gradients:
    """G of all weights, for `sequential_loss`: on disk, as only one weight's is used at a time.

    Args:
        folder: An empty folder.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._places: dict[str, Path] = {}

    def keep(self, site: Site, seen: Sequence[Statistics]) -> None:
        """Store G of a site; that of an embedding, a number, is for ranks alone."""
        gradients = {} if site.kind == "embedding" else {str(g): at.gradients for g, at in enumerate(seen)}
        matrices = {g: G.contiguous() for g, G in gradients.items() if G is not None}
        if matrices:
            place = self._places[site.path] = self._folder / f"{len(self._places)}.safetensors"
            save_file(matrices, place)

    def given(self, site: Site, seen: list[Statistics]) -> list[Statistics]:
        """The statistics of a site with its G."""
        if site.path not in self._places:
            return seen
        matrices = load_file(self._places[site.path], device=str(site.matrices().device))
        return [replace(at, gradients=matrices[str(g)]) for g, at in enumerate(seen)]


def sequential(
    model: nn.Module,
    traced: Trace,
    ranks: Mapping[str, int],
    batches: Sequence[Batch],
    *,
    original: Sequence[Batch] | None = None,
    gradients: Gradients | None = None,
    dense: DenseRows | None = None,
    solved: Mapping[str, Solved] | None = None,
    memory: float = 2**30,
    progress: Callable[[float], None] = lambda _: None,
) -> dict[str, Solved]:
    """Factorise the weights with a rank, one group after the other. The network is left as it was, also by errors.

    Args:
        model: The network with its dense weights.
        traced: What `trace` saw of the network.
        ranks: Ranks by path; weights without one stay dense.
        batches: Calibration data.
        original: The same batches for the network as it was, where they differ; see `factorise`.
        gradients: G of all weights, for `sequential_loss`.
        dense: Rows that `covariances` kept of the same batches; the store is emptied.
        solved: Weights that are factorised already; the layers behind them get the outputs of their factors.
        memory: Bytes that may be held: one half for rows of the dense network, the other for outputs of finished
            layers; where the latter need more, every pass runs in full.
        progress: Function that is called with the share that is done.
    """
    groups = [group for group in (_Group.of(group, ranks) for group in traced.groups) if group.sites]
    solved = dict(solved or {})
    calls = {path: len(shapes) for path, shapes in traced.shapes.items()}
    passes = _Passes(
        model, groups, calls, batches, batches if original is None else original,
        DenseRows(memory / 2) if dense is None else dense, memory / 4,
    )  # fmt: skip
    solver = "sequential" if gradients is None else "sequential_loss"
    with evaluating(model), torch.no_grad():
        for index, group in enumerate(groups):
            sums = passes.sums(index) if group.keys or group.sites[0].kind == "embedding" else {}
            for site in group.sites:
                if (part := solved.get(site.path)) is not None:
                    passes.put(site, part, ranks[site.path])
                    continue
                seen = _statistics(site, group.key(site), sums, gradients)
                if site is group.sites[-1]:
                    sums = {}  # of 11,008 inputs each takes 1 GB
                part = solve(site, ranks[site.path], "activation" if site.kind == "embedding" else solver, seen)
                solved[site.path] = part
                passes.put(site, part, ranks[site.path])
            progress((index + 1) / len(groups))
    return solved


@dataclass(frozen=True)
class _Group:
    """Weights of layers that read the same tensor and are to be factorised, and the rows of the dense network needed.

    Attributes:
        first: Path of the first layer that reads the tensor, whether it is to be factorised or not.
        sites: The weights.
        keys: Keys of the rows, see `greenformers.solve.calibrate.keys_of`.
    """

    first: str
    sites: list[Site]
    keys: dict[Key, Site]

    @classmethod
    def of(cls, group: Sequence[Site], ranks: Mapping[str, int]) -> "_Group":
        """The weights of a group that have a rank."""
        keys = {key: site for key, site in keys_of(group).items() if not key[1] or key[0] in ranks}
        chosen = [site for site in group if site.path in ranks]
        return cls(group[0].path, chosen, {} if group[0].kind in APART else keys)

    def key(self, site: Site) -> Key:
        """The key of the rows of a site."""
        return next((key for key in self.keys if key == (site.path, True)), next(iter(self.keys), (site.path, False)))


class _Passes:
    """The network as it was and as it is by now, run side by side.

    Args:
        model: The network.
        groups: Groups of weights, in the order of execution.
        calls: Number of calls of each layer in a batch, by path.
        batches: Calibration data.
        original: Calibration data for the network as it was.
        dense: Store of the rows that groups see in the network as it was.
        memory: Bytes of the outputs of finished layers, for each of the two networks.

    Attributes:
        units: Low-rank units of the weights that have been factorised, by path.
    """

    def __init__(
        self,
        model: nn.Module,
        groups: Sequence[_Group],
        calls: Mapping[str, int],
        batches: Sequence[Batch],
        original: Sequence[Batch],
        dense: DenseRows,
        memory: float,
    ) -> None:
        self.model, self.groups, self.calls, self.batches, self.dense = model, groups, calls, batches, dense
        self.original = original
        self.units: dict[str, nn.Module] = {}
        with evaluating(model), torch.no_grad():
            order = layers(model, lambda: call(model, batches[0]))
        self.before, self.now = (Replay(model, order, len(batches), memory) for _ in range(2))

    def put(self, site: Site, part: Solved, rank: int) -> None:
        """Have the layers that follow get the outputs of these factors."""
        decoder, encoder = part.decoder[..., :rank], part.encoder[:, :rank]
        self.units.update(filled(self.model, site, decoder, encoder, part.shift(rank)))

    def sums(self, index: int) -> dict[Hashable, Tensor]:
        """The sums over positions that the statistics of a group are made of, by quantity."""
        path = self.groups[index].first
        if not self.dense.holds(self.groups[index].keys):
            self.before.advance(path, lambda number: call(self.model, self.original[number]))
            self._look_ahead(index)
        with placed(self.model, self.units):
            self.now.advance(path, lambda number: call(self.model, self.batches[number]))
        sums = self._summed(index)
        broken = not all(part.isfinite().all() for part in sums.values())
        if broken and anywhere(not (self.before.off and self.now.off), self.batches):
            self.before.stop()  # the network reads layers that are not kept
            self.now.stop()
            self._look_ahead(index)
            sums = self._summed(index)
        return sums

    def _look_ahead(self, index: int) -> None:
        """Hold the rows of this group and of as many after it as fit `memory`; none if those of this one do not fit."""
        pending = {key: site for group in self.groups[index:] for key, site in group.keys.items()}
        self.dense.clear()
        self.dense.begin(pending)
        for number in range(len(self.batches)):
            pending = {key: site for key, site in pending.items() if self.dense.holds([key])}
            if not pending:
                return
            self._note(number, pending, self.dense)

    def _note(self, number: int, pending: Mapping[Key, Site], dense: DenseRows) -> None:
        """Run the network as it was on the batch with this number, until all pending rows have been seen."""
        left = {key: self.calls[site.path] for key, site in pending.items()}

        def note(key: Key, site: Site) -> Hook:
            def hook(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
                given = masks.at(args[0])
                part = given_rows(site, module, out, given) if key[1] else rows(site, args[0], given)
                dense.add(key, number, part, self.calls[site.path])
                left[key] -= 1
                if all(count <= 0 for count in left.values()):
                    raise Reached

            return hook

        hooks = [(site, note(key, site)) for key, site in pending.items()]
        with self.before.resumed(number), padding(self.model) as masks, hooked(self.model, hooks), suppress(Reached):
            batch = self.original[number]
            masks.begin(batch)
            call(self.model, batch)

    def _now(self, site: Site, numbers: Iterable[int]) -> Iterator[Tensor]:
        """The rows of a site in the network as it is by now, of each batch; for an embedding the entries looked up."""
        parts: list[Tensor] = []

        def hook(_: nn.Module, args: tuple[Tensor, ...], __: object) -> None:
            x, given = args[0], masks.at(args[0])
            parts.append(unpadded(x, x.shape, given) if site.kind == "embedding" else rows(site, x, given))
            if len(parts) == self.calls[site.path]:
                raise Reached

        units = {path: unit for path, unit in self.units.items() if path not in site.paths}
        with (
            placed(self.model, units),
            padding(self.model) as masks,
            hooked(self.model, [(site, hook)], before=True),
        ):
            for number in numbers:
                parts.clear()
                batch = self.batches[number]
                masks.begin(batch)
                with self.now.resumed(number), suppress(Reached):
                    call(self.model, batch)
                if not parts:
                    raise _other_positions(site)
                yield torch.cat(parts, -1 if site.kind == "embedding" else -2)

    def _beside(self, index: int) -> "Iterator[tuple[Tensor, dict[Key, list[Tensor]]]]":
        """For each batch the rows of a group in the network as it is by now, and as it was."""
        group, numbers = self.groups[index], range(len(self.batches))
        site = group.sites[0]
        if self.dense.holds(group.keys):
            held = {key: self.dense.take(key) for key in group.keys}
            for number, x in enumerate(self._now(site, numbers)):
                if any(len(batches) <= number for batches in held.values()):
                    raise _other_positions(site)
                yield x, {key: batches[number] for key, batches in held.items()}
            return
        for number in numbers:
            (x,) = self._now(site, [number])  # to its end: the network is dense again
            single = DenseRows(float("inf"))
            single.begin(group.keys)
            self._note(number, group.keys, single)
            yield x, {key: single.take(key)[number] for key in group.keys}

    def _summed(self, index: int) -> dict[Hashable, Tensor]:
        site, sums = self.groups[index].sites[0], Sums(self.batches)
        for x, dense in self._beside(index):
            if site.kind == "embedding":
                sums.add("counts", torch.bincount(x, minlength=site.m))
                continue
            sums.products("C", x)
            sums.add("x", x.sum(1))
            sums.add("count", x.new_tensor(x.shape[1]))
            for key, parts in dense.items():
                if not parts or sum(part.shape[-2] for part in parts) != x.shape[-2]:
                    raise _other_positions(site)
                before = torch.cat(parts, -2)
                sums.products((key, "cross"), before, x)
                sums.products((key, "own"), before)
                sums.add((key, "mean"), before.sum(1))
        return sums.done()


def _other_positions(site: Site) -> ValueError:
    """Some layers of experts see what is routed to them, which changes with the layers before them."""
    return ValueError(
        f"{site.path}: it reads other positions once the layers before it are changed: take solver activation or loss"
    )


def _statistics(site: Site, key: Key, sums: Mapping[Hashable, Tensor], gradients: Gradients | None) -> list[Statistics]:
    if site.kind == "embedding":
        return [Statistics(sums["counts"])]
    C, x, count = sums["C"], sums["x"], sums["count"]
    cross, own, before = (sums[key, name] for name in ("cross", "own", "mean"))
    if has_bias(site):  # the bias makes up for the means
        x, before = x / count, before / count
        C = C - count * torch.einsum("gi,gj->gij", x, x)
        cross = cross - count * torch.einsum("gi,gj->gij", before, x)
        own = own - count * torch.einsum("gi,gj->gij", before, before)
    seen = [Statistics(part) for part in C]
    seen = seen if gradients is None else gradients.given(site, seen)
    W = site.matrices().double()
    by_group = []
    for g, at in enumerate(seen):
        G = at.gradients
        if key[1]:  # the outputs of the layer
            target, total, mean = cross[g], own[g].trace() if G is None else (own[g] * G).sum(), before[g]
        else:
            WC, GW = W[g] @ own[g], W[g] if G is None else G @ W[g]
            target, total, mean = W[g] @ cross[g], (WC * GW).sum(), W[g] @ before[g]
        means = {"mean": x[g], "output_mean": mean} if has_bias(site) else {}
        by_group.append(replace(at, cross=target, total=total.item(), **means))
    return by_group


@contextmanager
def placed(model: nn.Module, units: Mapping[str, nn.Module]) -> Iterator[None]:
    """A `with` block in which modules stand at these paths; afterwards those that were there are put back."""
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
