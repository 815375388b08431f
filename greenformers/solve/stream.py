"""Factorise a checkpoint weight by weight, for models too large to be held in RAM twice, or even once.

Only one weight and its factors are held at a time.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor, nn

from greenformers.lowrank.factorize import CALIBRATED, SOLVERS, SPECTRAL
from greenformers.lowrank.rank import MULTIPLE, largest
from greenformers.solve.budget import Budget, Layer, ranks
from greenformers.solve.census import census
from greenformers.solve.result import LayerReport
from greenformers.solve.solve import Solved, solve
from greenformers.solve.walk import Select, Site, sites


class Stored(NamedTuple):
    """A tensor of a checkpoint: the file that holds it, and how many entries and bytes it has."""

    file: Path
    entries: int
    bytes: int


class Stream:
    """A checkpoint on its way from disk to disk.

    Args:
        model: The network on the meta device.
        budget: Budget of parameters; "hull", "energy" and "stable" read the weights twice.
        solver: A solver that needs no calibration.
        select: Which weights, as for `greenformers.solve.factorise.factorise`.
        multiple: Number of which all ranks are multiples; by default 8, or 1 where the budget is a rank.
        seed: Seed of solvers that draw.
        progress: Function that is called as work goes on.

    Attributes:
        solver: The solver as it was given.
        held: The parameters of the network before, by kind.
        layers: Reports of the weights that `tensors` has read so far.

    Raises:
        ValueError: A value is out of range, or the solver or budget needs more than weights from disk.
    """

    def __init__(
        self,
        model: nn.Module,
        budget: Budget,
        *,
        solver: str = "randomized",
        select: Select = None,
        multiple: int | None = None,
        seed: int = 0,
        progress: Callable[[str, float], None] = lambda *_: None,
    ) -> None:
        if solver not in SOLVERS or solver in CALIBRATED:
            free = [name for name in SOLVERS if name not in CALIBRATED]
            raise ValueError(f"from disk, solver must be one of {', '.join(free)}; got {solver!r}")
        if budget.of != "parameters" or (budget.needs_spectrum and solver not in SPECTRAL):
            raise ValueError(f"from disk, solver {solver!r} cannot spend a budget {budget.how!r} of {budget.of}")
        if multiple is not None and multiple < 1:
            raise ValueError(f"multiple must be at least 1, got {multiple}")
        self._budget, self.solver, self._seed, self._progress = budget, solver, seed, progress
        self._multiple = multiple or (1 if budget.how == "rank" else MULTIPLE["cpu"])
        self.held, self._sites = census(model), sites(model, select)
        self._ranks: dict[str, int | None] = {}
        self.layers: list[LayerReport] = []

    def tensors(self, stored: Mapping[str, Stored]) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of the compressed checkpoint by name, one after the other.

        Raises:
            ValueError: The checkpoint lacks a weight, or holds one of another shape.
        """
        by_key = {key_of(site, stored): site for site in self._sites}
        self._ranks = self._chosen(by_key, stored)
        for number, (key, (path, *_)) in enumerate(stored.items()):
            site = by_key.get(key)
            rank = None if site is None else self._ranks[site.path]
            if site is None or rank is None:
                part = None
                with safe_open(path, framework="pt") as file:
                    tensor = file.get_tensor(key)
                yield key, tensor
                itemsize = tensor.element_size()
            else:
                part = self._solved(site, path, key, rank)
                yield from _factors(site, key.removesuffix(".weight"), part, rank)
                itemsize = part.encoder.element_size()
            if site is not None:
                self.layers.append(LayerReport.of(site, part, rank, itemsize))
            self._progress("factorising", (number + 1) / len(stored))

    def description(self) -> dict[str, Any]:
        """Ranks by path and groups of paths that share factors, once all tensors have been read."""
        low = [site for site in self._sites if self._ranks[site.path] is not None]
        return {
            "ranks": {path: self._ranks[site.path] for site in low for path in site.paths},
            "ties": [list(site.paths) for site in low if len(site.paths) > 1],
        }

    def _chosen(self, by_key: Mapping[str, Site], stored: Mapping[str, Stored]) -> dict[str, int | None]:
        layers = []
        for number, (key, site) in enumerate(by_key.items()):
            energies = None
            limit = largest(site.m, site.n)
            if self._budget.needs_spectrum and limit:
                energies = self._solved(site, stored[key].file, key, limit).energies
            layers.append(Layer(site, torch.zeros(1) if energies is None else energies))
            self._progress("looking", (number + 1) / len(by_key))
        chosen = ranks(layers, self._budget, lambda site, rank: site.parameters(rank), self._multiple)
        return {site.path: rank for site, rank in zip(by_key.values(), chosen, strict=True)}

    def _solved(self, site: Site, file: Path, key: str, rank: int) -> Solved:
        with opened(site, file, key):
            part = solve(site, rank, self.solver, seed=self._seed + self._number(site))
            module: Any = site.module
            if site.kind == "embedding" and module.padding_idx is not None:  # a row of zeros stays one, as in memory
                part.decoder[:, module.padding_idx] *= module.weight[module.padding_idx].any()
            return part

    def _number(self, site: Site) -> int:
        """What a weight adds to the seed of solvers that draw, as in memory."""
        if self.solver in SPECTRAL:
            return 0
        return [other.path for other in self._sites if self._ranks.get(other.path) is not None].index(site.path)


def _factors(site: Site, stem: str, part: Solved, rank: int) -> Iterator[tuple[str, Tensor]]:
    """The factors of a site by the names that they have in a checkpoint."""
    if site.kind == "experts":
        yield f"{stem}.decoders.weight", part.decoder[..., :rank].contiguous()
        yield f"{stem}.encoders.weight", part.encoder[:, :rank].contiguous()
        return
    weight = ".weight" if site.kind == "linear" else ""  # each factor of an LED is a linear layer
    yield f"{stem}.decoder{weight}", part.decoder[..., :rank].flatten(0, 1).contiguous()
    encoder = part.encoder[:, :rank].flatten(0, 1)
    if site.kind == "conv":
        kernel: Any = site.module
        encoder = encoder.unflatten(1, kernel.weight.shape[1:])
    yield f"{stem}.encoder{weight}", encoder.contiguous()


@contextmanager
def opened(site: Site, file: Path, key: str) -> Iterator[None]:
    """A `with` block in which the layer of a site on the meta device has its weight from a file.

    Raises:
        ValueError: The checkpoint holds one of another shape.
    """
    module: Any = site.module
    empty = module.weight
    with safe_open(file, framework="pt") as part:
        weight = part.get_tensor(key)
    if weight.shape != empty.shape:
        raise ValueError(f"{key} is {tuple(weight.shape)} in the checkpoint, {tuple(empty.shape)} by its configuration")
    module.weight = nn.Parameter(weight, requires_grad=False)
    try:
        yield
    finally:
        module.weight = empty


OTHER_NAMES = "its names are not those of the network; load and save it, or, where that leaves them, work in memory"
"""transformers may rename weights when they are loaded and saved; from disk they are read as they are."""


def key_of(site: Site, stored: Mapping[str, Stored]) -> str:
    """The name of a weight in a checkpoint.

    Raises:
        ValueError: It is not there.
    """
    for path in site.paths:
        if f"{path}.weight" in stored:
            return f"{path}.weight"
    raise ValueError(f"the checkpoint has no {site.path}.weight: {OTHER_NAMES}")
