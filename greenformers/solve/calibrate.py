"""What the weights of a network see: covariances of inputs and of output gradients, streamed over batches of data.

The statistics of a weight are sums of outer products, d x d whatever the amount of data. Those of as many weights as
fit `memory` are collected in one pass over the data, at least one weight's; then come the next. Weights that read the
same tensor, as query, key and value do, share one covariance. Padded positions are left out.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from greenformers.lowrank.factorize import Statistics, gram
from greenformers.measure.quality import evaluating
from greenformers.solve import experts
from greenformers.solve.walk import Site
from greenformers.solve.watch import Batch, Hook, Loss, Trace, call, frozen, hooked, kept, out_rows, padding, rows

UNFELT = 1e-30

WIDE = (torch.float32, torch.float64)

APART = ("embedding", "experts")
"""Kinds that no sequential solver is for: they see counts, and what is routed to each expert."""

CHUNK = 1024
"""Positions a product: of fewer, adding up d x d sums takes longer than the products themselves."""


def covariances(
    model: nn.Module,
    found: Trace,
    batches: Iterable[Batch],
    *,
    loss: Loss | None = None,
    memory: float = 2**30,
    spectra: bool = False,
    dense: "DenseRows | None" = None,
    progress: Callable[[float], None] = lambda _: None,
) -> Iterator[tuple[Site, list[Statistics]]]:
    """The statistics of every site, one a group of its matrices, in the order of execution.

    `inputs` is the sum of x x^T over inputs; of an embedding the counts of its entries, (V,). `gradients` is the sum of
    d d^T over gradients of `loss` in the outputs, if one is given. In float64, on the model's device.

    Of a map with a bias x is taken from its mean, which is `mean`: what a constant input gives, the bias can give too.

    Args:
        model: run in evaluation mode, without weight gradients.
        found: of `trace`.
        batches: gone through once for every portion that fits `memory`.
        loss: for G.
        memory: bytes of statistics held at once; one group of maps that read the same tensor is held in any case.
        spectra: give no more than spectra need: `outputs` in place of `inputs` of maps that give less than they read.
        dense: is filled with what groups see, for sequential solvers.
        progress: called with the share that is done.

    Raises:
        ValueError: no batch; inputs that are not finite.
    """
    portions = _portions(found.groups, memory, loss is not None, spectra)
    calls = {path: len(shapes) for path, shapes in found.shapes.items()}
    for index, portion in enumerate(portions):
        notes = _Notes(loss is not None, spectra, dense, calls)
        sums = _collect(
            model,
            portion,
            batches,
            loss,
            notes,
            lambda share, at=index: progress((at + share) / len(portions)),  # type: ignore[misc]
        )
        for group in portion:
            for site in group:
                yield site, _statistics(site, group[0], sums)


def _statistics(site: Site, first: Site, sums: Mapping[Hashable, Tensor]) -> list[Statistics]:
    if site.kind == "experts":
        return experts.statistics(site, sums, has_bias(site))
    outputs = (site.path, "Y") in sums
    C, G = sums[(site.path, "Y") if outputs else (first.path, "C")], sums.get((site.path, "G"))
    if not C.isfinite().all():
        raise ValueError(f"the inputs of {site.path!r} are not finite on the calibration data")
    if site.kind == "embedding":
        return [Statistics(C)]
    if G is not None and not G.isfinite().all():
        raise ValueError(f"the gradients in {site.path!r} are not finite on the calibration data")
    count = sums[first.path, "count"]
    mean = sums[(site.path, "y") if outputs else (first.path, "x")] / count
    if has_bias(site):
        C = C - count * mean[:, :, None] * mean[:, None, :]
    if outputs:
        return [Statistics(outputs=C[0], gradients=None if G is None else G[0])]
    return [
        Statistics(C[g], gradients=None if G is None else G[g], mean=mean[g] if has_bias(site) else None)
        for g in range(site.groups)
    ]


def has_bias(site: Site) -> bool:
    """True where a constant can be added to what the site gives."""
    return getattr(site.module, "bias", None) is not None


def gives_less(group: Sequence[Site]) -> bool:
    """True for linear maps that together give fewer numbers than they read: then what they give says all, and faster.

    Of half precision it does not: outputs are rounded, products of inputs and weights are not.
    """
    first = group[0]
    return first.kind == "linear" and sum(site.m for site in group) < first.n and first.matrices().dtype in WIDE


Key = tuple[str, bool]
"""Path of a map, and whether what it gives is meant: else what it reads."""


def keys_of(group: Sequence[Site]) -> dict[Key, Site]:
    """What is to be known of a group in the dense network: what its maps read, or give where that is less."""
    return {(site.path, True): site for site in group} if gives_less(group) else {(group[0].path, False): group[0]}


class DenseRows:
    """What groups of maps see in the dense network, batch by batch; of the first groups, as many as fit.

    Args:
        memory: bytes.
    """

    def __init__(self, memory: float) -> None:
        self.memory, self._held = memory, 0
        self._rows: dict[Key, list[list[Tensor]]] = {}

    def begin(self, keys: Iterable[Key]) -> None:
        """Get ready for rows of these, which come after those held already."""
        self._rows |= {key: [] for key in keys}

    def holds(self, keys: Iterable[Key]) -> bool:
        """True where nothing was dropped."""
        return all(key in self._rows for key in keys)

    def add(self, key: Key, number: int, part: Tensor, calls: int) -> None:
        """Hold rows (g, positions, n) of the batch with this number, of no more than so many calls of a map."""
        batches = self._rows.get(key)
        if batches is None:
            return
        batches += [[] for _ in range(number + 1 - len(batches))]
        if len(batches[number]) == calls:
            return
        batches[number].append(part.clone())
        self._held += _size(part)
        while self._held > self.memory:
            self.take(next(reversed(self._rows)))

    def take(self, key: Key) -> list[list[Tensor]]:
        """The rows of each batch, of each call. They are held no longer."""
        batches = self._rows.pop(key)
        self._held -= sum(_size(part) for batch in batches for part in batch)
        return batches

    def clear(self) -> None:
        """Hold nothing."""
        self._rows.clear()
        self._held = 0


def _size(part: Tensor) -> int:
    return part.numel() * part.element_size()


def given_rows(site: Site, module: nn.Module, out: Tensor, given: Mapping[str, Tensor]) -> Tensor:
    """What a linear map gives without its bias: (1, positions, m)."""
    bias: Any = getattr(module, "bias", None)
    out = out.detach()
    return out_rows(site, out if bias is None else out - bias, given)


@dataclass(frozen=True)
class _Notes:
    """What is noted in a pass.

    Attributes:
        gradients: sums of gradients.
        spectra: of maps that give less than they read, sums of what they give in place of what they read.
        dense: is filled, where there is one.
        calls: of each map in a batch, by path.
    """

    gradients: bool
    spectra: bool
    dense: DenseRows | None
    calls: Mapping[str, int]

    def fill(self, key: Key, number: int, part: Tensor) -> None:
        """Hand rows on to sequential solvers."""
        if self.dense is not None:
            self.dense.add(key, number, part, self.calls[key[0]])


def _portions(groups: list[list[Site]], memory: float, gradients: bool, spectra: bool) -> list[list[list[Site]]]:
    portions: list[list[list[Site]]] = []
    held = float("inf")
    for group in groups:
        size = _bytes(group[0].groups, group[0].n) if group[0].kind != "embedding" else 0
        if spectra and gives_less(group):
            size = sum(_bytes(1, site.m) for site in group)
        if gradients:
            size += sum(_bytes(site.groups, site.m) for site in group if site.kind != "embedding")
        if held + size > memory:
            portions.append([])
            held = 0
        portions[-1].append(group)
        held += size
    return portions


def _bytes(groups: int, width: int) -> int:
    """Of a sum in float64, and of the positions in float32 that are gathered for it."""
    return groups * (8 * width**2 + 4 * CHUNK * width)


class Sums:
    """Running sums over batches, by key: products of float32 over `CHUNK` positions at a time, added up in float64."""

    def __init__(self) -> None:
        self._sums: dict[Hashable, Tensor] = {}
        self._gathered: dict[Hashable, tuple[list[Tensor], int]] = {}

    def add(self, key: Hashable, more: Tensor) -> None:
        """Add to a sum."""
        self._sums[key] = self._sums[key].add_(more) if key in self._sums else more.double()

    def products(self, key: Hashable, *rows: Tensor) -> None:
        """Add the sum over positions of a b^T, or of a a^T. Rows are (g, positions, n), and copied if they are held."""
        positions, at = rows[0].shape[1], 0
        while at < positions:
            buffers, held = self._gathered.get(key, ([], 0))
            if not held and positions - at >= CHUNK:
                self.add(key, _product([part[:, at:] for part in rows]))
                return
            buffers = buffers or [part.new_empty(len(part), CHUNK, part.shape[2]) for part in rows]
            count = min(CHUNK - held, positions - at)
            for buffer, part in zip(buffers, rows, strict=True):
                buffer[:, held : held + count] = part[:, at : at + count]
            self._gathered[key] = buffers, held + count
            at += count
            if held + count == CHUNK:
                self._multiply(key)

    def _multiply(self, key: Hashable) -> None:
        buffers, held = self._gathered[key]
        if held:
            self.add(key, _product([buffer[:, :held] for buffer in buffers]))
        self._gathered[key] = buffers, 0

    def done(self) -> dict[Hashable, Tensor]:
        """All sums."""
        for key in self._gathered:
            self._multiply(key)
        self._gathered.clear()
        return self._sums


def _product(rows: Sequence[Tensor]) -> Tensor:
    return gram(rows[0]) if len(rows) == 1 else rows[0].mT @ rows[1]


def _collect(
    model: nn.Module,
    portion: list[list[Site]],
    batches: Iterable[Batch],
    loss: Loss | None,
    notes: _Notes,
    progress: Callable[[float], None],
) -> dict[Hashable, Tensor]:
    running, number = Sums(), 0

    def read(site: Site, args: tuple[Any, ...], given: Mapping[str, Tensor], less: bool) -> None:
        x = args[0]
        if site.kind == "experts":
            for expert, part in experts.rows_of(x, args[1], given):
                running.products((site.path, "C", expert), part[None])
                running.add((site.path, "x", expert), part.sum(0))
                running.add((site.path, "count", expert), x.new_tensor(len(part)))
            return
        if site.kind == "embedding":
            running.add((site.path, "C"), torch.bincount(kept(x, x.shape, given), minlength=site.m))
            return
        x = rows(site, x, given)
        running.add((site.path, "count"), x.new_tensor(x.shape[1]))
        if not (less and notes.spectra):
            running.products((site.path, "C"), x)
            running.add((site.path, "x"), x.sum(1))
        if not less:
            notes.fill((site.path, False), number, x)

    def gave(site: Site, y: Tensor) -> None:
        notes.fill((site.path, True), number, y)
        if notes.spectra:
            running.products((site.path, "Y"), y)
            running.add((site.path, "y"), y.sum(1))

    def felt(site: Site, args: tuple[Any, ...], d: Tensor, given: Mapping[str, Tensor]) -> None:
        if site.kind == "experts":
            for expert, part in experts.rows_of(d, args[1], given):
                running.products((site.path, "G", expert), part[None])
        else:
            running.products((site.path, "G"), out_rows(site, d, given))

    def note(site: Site, first: bool, less: bool) -> Hook:
        def hook(module: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor | None:
            given = masks.at(args[0])
            with torch.no_grad():
                if first:
                    read(site, args, given, less)
                if less and (notes.spectra or notes.dense is not None):
                    gave(site, given_rows(site, module, out, given))
            if loss is None:
                return None
            # The graph begins at the first site: nothing before it needs a gradient. A clone, for what follows may
            # change its input in place, and must not a leaf.
            out = out if out.requires_grad else out.detach().requires_grad_().clone()
            if site.kind != "embedding":
                out.register_hook(lambda d: felt(site, args, d, given))
            return out

        return hook

    hooks = [(site, note(site, site is group[0], gives_less(group))) for group in portion for site in group]
    if notes.dense is not None:
        notes.dense.begin(key for group in portion if group[0].kind not in APART for key in keys_of(group))
    batches = list(batches) if not isinstance(batches, Sequence) else batches
    if not len(batches):
        raise ValueError("the calibration data must hold at least one batch, got none")
    getattr(loss, "restart", lambda: None)()
    with (
        evaluating(model),
        frozen(model),
        torch.set_grad_enabled(loss is not None),
        padding(model) as masks,
        hooked(model, hooks),
    ):
        for number, batch in enumerate(batches):
            masks.begin(batch)
            if loss is None:
                call(model, batch)
            else:
                value = loss(model, batch)
                if not value.isfinite():
                    raise ValueError(f"the loss on batch {number} of the calibration data is {value.item()}")
                if value.requires_grad:  # it does not if no map of the portion has a part in it
                    value.backward()
            progress((number + 1) / len(batches))
    sums = running.done()
    for site in (site for group in portion for site in group):
        if loss is not None and site.kind not in APART and (site.path, "G") not in sums:
            # The loss does not depend on this map: any error in it costs next to nothing.
            eye = torch.eye(site.m, dtype=torch.float64, device=site.matrices().device)
            sums[site.path, "G"] = (UNFELT * eye).expand(site.groups, -1, -1)
    return sums
