"""What the weights of a network see: covariances of inputs and of output gradients, streamed over batches of data.

The statistics of a weight are sums of outer products, d x d whatever the amount of data. One pass over the data
collects the statistics of as many weights as fit `memory`, at least those of one; the next pass collects the next ones.
Weights that read the same tensor, as query, key and value do, share one covariance. Padded positions are left out.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from greenformers.lowrank.factorize import Statistics
from greenformers.measure.quality import evaluating
from greenformers.solve import experts
from greenformers.solve.sums import CHUNK, Sums
from greenformers.solve.walk import Site
from greenformers.solve.watch import (
    Batch,
    Hook,
    Loss,
    Padding,
    Trace,
    call,
    frozen,
    hooked,
    out_rows,
    padding,
    rows,
    unpadded,
)

UNFELT = 1e-30

WIDE = (torch.float32, torch.float64)

APART = ("embedding", "experts")
"""Kinds of weights without a sequential solver: embeddings see counts, experts the rows that are routed to them."""


def covariances(
    model: nn.Module,
    traced: Trace,
    batches: Iterable[Batch],
    *,
    loss: Loss | None = None,
    memory: float = 2**30,
    spectra: bool = False,
    dense: "DenseRows | None" = None,
    progress: Callable[[float], None] = lambda _: None,
) -> Iterator[tuple[Site, list[Statistics]]]:
    """The statistics of every site, one entry for each of its matrices, in the order of execution.

    `inputs` is the sum of x x^T over the inputs, C; for an embedding it holds the counts of its entries, (V,).
    `gradients` is the mean of d d^T over the gradients of `loss` in the outputs, G, if a loss is given; of an embedding
    the mean of the squares of d, a number. All sums are in float64, on the model's device.

    For a layer with a bias x is centred by its mean, which is `mean`: what a constant input adds to the output, the
    bias can add too.

    Args:
        model: The network; it runs in evaluation mode, without weight gradients.
        traced: What `trace` saw of the network.
        batches: Calibration data, read once for every portion of the weights that fits `memory`.
        loss: Loss of a model on a batch, for G.
        memory: Bytes of statistics held at once; those of one group of layers that read the same tensor always are.
        spectra: Give only what spectra need: `outputs` in place of `inputs` for layers narrower at the output.
        dense: Store that is filled with the rows that the groups see, for sequential solvers.
        progress: Function that is called with the share that is done.

    Raises:
        ValueError: There is no batch, or inputs are not finite.
    """
    portions = _portions(traced.groups, memory, loss is not None, spectra)
    calls = {path: len(shapes) for path, shapes in traced.shapes.items()}
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
        sums.clear()  # before those of the next portion are made


def _statistics(site: Site, first: Site, sums: Mapping[Hashable, Tensor]) -> list[Statistics]:
    if site.kind == "experts":
        return experts.statistics(site, sums, has_bias(site))
    outputs = (site.path, "Y") in sums
    C, G = sums[(site.path, "Y") if outputs else (first.path, "C")], sums.get((site.path, "G"))
    if not C.isfinite().all():
        raise ValueError(f"the inputs of {site.path!r} are not finite on the calibration data")
    felt = sums.get((site.path, "felt"))
    for gradients in (G, felt):
        if gradients is not None and not gradients.isfinite().all():
            raise ValueError(f"the gradients in {site.path!r} are not finite on the calibration data")
    if site.kind == "embedding":
        # A gradient that is the same in all directions, in the mean over positions.
        return [Statistics(C, gradients=None if felt is None else felt / (C.sum() * site.n))]
    count = sums[first.path, "count"]
    mean = sums[(site.path, "y") if outputs else (first.path, "x")] / count
    if has_bias(site):
        C = C - count * mean[:, :, None] * mean[:, None, :]
    if outputs:
        return [Statistics(outputs=C[0], gradients=None if G is None else G[0] / count)]
    return [
        Statistics(C[g], gradients=None if G is None else G[g] / count, mean=mean[g] if has_bias(site) else None)
        for g in range(site.groups)
    ]


def has_bias(site: Site) -> bool:
    """True where the site has a bias, which can add a constant to its outputs."""
    return getattr(site.module, "bias", None) is not None


def gives_less(group: Sequence[Site]) -> bool:
    """True for linear layers whose outputs together are narrower than their input.

    Statistics of the outputs then hold all that is needed, and cost less. In half precision they do not: outputs are
    rounded there, products of inputs and weights are not.
    """
    first = group[0]
    return first.kind == "linear" and sum(site.m for site in group) < first.n and first.matrices().dtype in WIDE


Key = tuple[str, bool]
"""Path of a layer, and True for the rows that it gives, False for those that it reads."""


def keys_of(group: Sequence[Site]) -> dict[Key, Site]:
    """The rows of the dense network that a group needs: those its layers read, or give where these are narrower."""
    return {(site.path, True): site for site in group} if gives_less(group) else {(group[0].path, False): group[0]}


class DenseRows:
    """The rows that groups of layers see in the dense network, batch by batch; of the first groups, as many as fit.

    Args:
        memory: Bytes of rows that may be held.
    """

    def __init__(self, memory: float) -> None:
        self.memory, self._held = memory, 0
        self._rows: dict[Key, list[list[Tensor]]] = {}

    def begin(self, keys: Iterable[Key]) -> None:
        """Prepare to hold the rows of these keys, after those that are held already."""
        self._rows |= {key: [] for key in keys}

    def holds(self, keys: Iterable[Key]) -> bool:
        """True where the rows of all these keys are held: none was dropped."""
        return all(key in self._rows for key in keys)

    def add(self, key: Key, number: int, part: Tensor, calls: int) -> None:
        """Hold rows (g, positions, n) of the batch with this number, for no more than so many calls of a layer."""
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
        """The rows by batch and call. They are held no longer."""
        batches = self._rows.pop(key)
        self._held -= sum(_size(part) for batch in batches for part in batch)
        return batches

    def clear(self) -> None:
        """Drop all rows."""
        self._rows.clear()
        self._held = 0


def _size(part: Tensor) -> int:
    return part.numel() * part.element_size()


def given_rows(site: Site, module: nn.Module, out: Tensor, given: Mapping[str, Tensor]) -> Tensor:
    """The outputs of a linear layer without its bias: (1, positions, m)."""
    bias: Any = getattr(module, "bias", None)
    out = out.detach()
    return out_rows(site, out if bias is None else out - bias, given)


@dataclass(frozen=True)
class _Notes:
    """What one pass over the data records.

    Attributes:
        gradients: True where sums over gradients are recorded.
        spectra: True where layers narrower at the output have sums over outputs in place of inputs.
        dense: Store of rows for sequential solvers, if there is one.
        calls: Number of calls of each layer in a batch, by path.
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
    """Bytes of a sum in float64, and of the positions in float32 that are gathered for it."""
    return groups * (8 * width**2 + 4 * CHUNK * width)


class _Observer:
    """Sums over what layers read and give, and over the gradients at their outputs, batch by batch.

    Args:
        running: The sums.
        notes: What is recorded.
        masks: Padding of the batch that is computed.
        gradients: Whether outputs tell their gradients.
    """

    def __init__(self, running: Sums, notes: _Notes, masks: Padding, gradients: bool) -> None:
        self.running, self.notes, self.masks, self.gradients = running, notes, masks, gradients
        self.number = 0  # of the batch

    def hook(self, site: Site, first: bool, less: bool) -> Hook:
        """What is called with each output of a site; the first of a group tells of their common input."""

        def hook(module: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor | None:
            given = self.masks.at(args[0])
            with torch.no_grad():
                if first:
                    self._read(site, args, given, less)
                if less and (self.notes.spectra or self.notes.dense is not None):
                    self._gave(site, given_rows(site, module, out, given))
            if not self.gradients:
                return None
            # The graph begins at the first site: nothing before it needs a gradient. A clone, for what follows may
            # change its input in place, and must not a leaf.
            out = out if out.requires_grad else out.detach().requires_grad_().clone()
            out.register_hook(lambda d: self._felt(site, args, d, given))
            return out

        return hook

    def _read(self, site: Site, args: tuple[Any, ...], given: Mapping[str, Tensor], less: bool) -> None:
        x, running = args[0], self.running
        if site.kind == "experts":
            for expert, part in experts.rows_of(x, args[1], given):
                running.products((site.path, "C", expert), part[None])
                running.add((site.path, "x", expert), part.sum(0))
                # Not in the type of the inputs: in bfloat16 1,001 rows are 1,000.
                running.add((site.path, "count", expert), x.new_tensor(len(part), dtype=torch.float64))
            return
        if site.kind == "embedding":
            running.add((site.path, "C"), torch.bincount(unpadded(x, x.shape, given), minlength=site.m))
            return
        x = rows(site, x, given)
        running.add((site.path, "count"), x.new_tensor(x.shape[1]))
        if not (less and self.notes.spectra):
            running.products((site.path, "C"), x)
            running.add((site.path, "x"), x.sum(1))
        if not less:
            self.notes.fill((site.path, False), self.number, x)

    def _gave(self, site: Site, y: Tensor) -> None:
        self.notes.fill((site.path, True), self.number, y)
        if self.notes.spectra:
            self.running.products((site.path, "Y"), y)
            self.running.add((site.path, "y"), y.sum(1))

    def _felt(self, site: Site, args: tuple[Any, ...], d: Tensor, given: Mapping[str, Tensor]) -> None:
        if site.kind == "experts":
            for expert, part in experts.rows_of(d, args[1], given):
                self.running.products((site.path, "G", expert), part[None])
        elif site.kind == "embedding":
            self.running.add((site.path, "felt"), unpadded(d, d.shape[:-1], given).double().square().sum())
        else:
            self.running.products((site.path, "G"), out_rows(site, d, given))


def _collect(
    model: nn.Module,
    portion: list[list[Site]],
    batches: Iterable[Batch],
    loss: Loss | None,
    notes: _Notes,
    progress: Callable[[float], None],
) -> dict[Hashable, Tensor]:
    batches = list(batches) if not isinstance(batches, Sequence) else batches
    running = Sums(batches)
    if notes.dense is not None:
        notes.dense.begin(key for group in portion if group[0].kind not in APART for key in keys_of(group))
    if not len(batches):
        raise ValueError("the calibration data must hold at least one batch, got none")
    getattr(loss, "restart", lambda: None)()
    with evaluating(model), frozen(model), torch.set_grad_enabled(loss is not None), padding(model) as masks:
        observer = _Observer(running, notes, masks, loss is not None)
        hooks = [
            (site, observer.hook(site, site is group[0], gives_less(group))) for group in portion for site in group
        ]
        with hooked(model, hooks):
            for number, batch in enumerate(batches):
                observer.number = number
                masks.begin(batch)
                _computed(model, batch, number, loss)
                progress((number + 1) / len(batches))
    sums = running.done()
    if loss is not None:
        _fill_unfelt(sums, [site for group in portion for site in group])
    return sums


def _computed(model: nn.Module, batch: Batch, number: int, loss: Loss | None) -> None:
    """Call the model on a batch, and the backward pass of its loss where there is one."""
    if loss is None:
        call(model, batch)
        return
    value = loss(model, batch)
    if not value.isfinite():
        raise ValueError(f"the loss on batch {number} of the calibration data is {value.item()}")
    if value.requires_grad:  # it does not where it depends on no weight of the portion
        value.backward()


def _fill_unfelt(sums: dict[Hashable, Tensor], sites: Iterable[Site]) -> None:
    """Set sums over gradients of weights that the loss does not depend on: any error in them costs next to nothing."""
    for site in sites:
        if site.kind not in APART and (site.path, "G") not in sums:
            eye = torch.eye(site.m, dtype=torch.float64, device=site.matrices().device)
            sums[site.path, "G"] = (UNFELT * eye).expand(site.groups, -1, -1)
