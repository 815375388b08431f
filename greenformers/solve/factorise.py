"""Factorise the weights of a trained network within a budget. The network itself is changed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from greenformers.lowrank.factorize import CALIBRATED, NEEDS, SOLVERS, SPECTRAL
from greenformers.lowrank.rank import largest
from greenformers.measure.parameters import parameters
from greenformers.solve.budget import Budget, Cost, Layer, ranks, usual_multiple
from greenformers.solve.calibrate import DenseRows, covariances
from greenformers.solve.loss import default
from greenformers.solve.result import Factorisation, LayerReport
from greenformers.solve.sequential import Gradients, sequential
from greenformers.solve.share import every
from greenformers.solve.solve import Solved, solve, spectrum_of
from greenformers.solve.speed import Latency, measure
from greenformers.solve.units import Unit, commit, filled, pack, unpack
from greenformers.solve.walk import Select, Site, sites
from greenformers.solve.watch import Batch, Loss, Trace, trace

NEAREST = {"sequential": "activation", "sequential_loss": "loss"}
"""The solver with the same objective as a sequential one, but for the dense network: for spectra, and for experts."""

Progress = Callable[[str, float], None]
"""Function that is called with the name of a step and the share of it that is done."""


def factorise(
    model: nn.Module,
    budget: float | Budget | Mapping[str, int] = 0.5,
    *,
    solver: str = "svd",
    select: Select = None,
    calibration: Iterable[Batch] | None = None,
    original: Sequence[Batch] | None = None,
    loss: Loss | None = None,
    example: Batch | None = None,
    multiple: int | None = None,
    only_if_faster: bool = False,
    memory: float = 2**30,
    seed: int = 0,
    progress: Progress = lambda *_: None,
) -> Factorisation:
    """Put low-rank units in the place of a trained network's weights. Nothing is changed if this raises.

    Args:
        model: Any network.
        budget: A share of the parameters of the selected weights, a `Budget`, or the rank of each weight by path.
        solver: "svd" and "randomized" use the weights alone; "activation" and "sequential" also the inputs of the
            layers on the calibration data; "loss" and "sequential_loss" gradients too. "nmf", "semi_nmf" and "random"
            have no spectrum.
        select: Which weights, see `greenformers.solve.walk.sites`; by default those of linear layers and experts.
        calibration: Batches: mappings of keyword arguments, sequences of positional ones, or tensors.
        original: The same batches as they are where nothing has been changed, for a part of a network whose inputs
            in `calibration` are changed already; by default those of `calibration`.
        loss: Loss of a model on a batch, for solvers with a loss; by default the model's own, or how far its outputs
            move.
        example: A batch for budgets of FLOPs or latency and for `only_if_faster`; by default the first of calibration.
        multiple: Number of which ranks are multiples; by default 8 on a CPU, 64 on a GPU, 1 where the budget is a rank.
        only_if_faster: Leave a weight dense where its factors are not faster on the example, as measured.
        memory: Bytes of calibration statistics held at once, see `greenformers.solve.calibrate.covariances`.
        seed: Seed of solvers that draw, and of the probes of losses.
        progress: Function that is called as work goes on.

    Raises:
        ValueError: A value is out of range, or the selection, weights or data cannot be used.
    """
    if solver not in SOLVERS:
        raise ValueError(f"solver must be one of {', '.join(SOLVERS)}; got {solver!r}")
    named = dict(budget) if isinstance(budget, Mapping) else None
    if named is not None and select is not None:
        raise ValueError("ranks by path select their weights themselves: leave select out")
    select = select if named is None else list(named)
    budget = _budget(1.0 if isinstance(budget, Mapping) else budget, solver)
    if multiple is not None and multiple < 1:
        raise ValueError(f"multiple must be at least 1, got {multiple}")
    if isinstance(calibration, Mapping | torch.Tensor):
        raise ValueError(f"calibration must be batches, got a {type(calibration).__name__}: put one batch in a list")
    batches = calibration if calibration is None or isinstance(calibration, Sequence) else list(calibration)
    if solver in CALIBRATED and not batches:
        raise ValueError(f"solver {solver!r} needs calibration data, at least one batch")
    original = batches if original is None else original
    example = batches[0] if example is None and batches else example
    before = parameters(model)
    unpacked = unpack(model)
    try:
        traced = None
        selected, unreached = sites(model, select), list[Site]()
        named = None if named is None else _by_site(named, selected)
        if solver in CALIBRATED or budget.of != "parameters" or only_if_faster:
            if example is None:
                raise ValueError(f"a budget of {budget.of} and only_if_faster need an example batch")
            traced = trace(model, selected, example, every(batches or ()))
            selected, unreached = _reached(selected, traced, select)
        itemsizes = [site.matrices().element_size() for site in selected]
        if multiple is None:
            multiple = usual_multiple(selected, budget)
        cost = _cost(budget, traced, multiple)
        if named is not None:
            highest = named
        elif budget.needs_spectrum:
            highest = {site.path: limit for site in selected if (limit := largest(site.m, site.n))}
        else:
            highest = _ranks(selected, {}, budget, cost, multiple)
        with ExitStack() as stack:
            gradients = None
            if solver == "sequential_loss":
                gradients = Gradients(stack.enter_context(TemporaryDirectory(prefix="greenformers-")))
            dense = DenseRows(memory / 2) if "cross" in NEEDS.get(solver, ()) else None
            work = _Work(
                model, selected, traced, solver, batches or (), original or (), loss, memory, seed, gradients, dense,
                progress,
            )  # fmt: skip
            solved, energies = work.first(highest)
            chosen = _ranks(selected, energies, budget, cost, multiple) if named is None else named
            if only_if_faster and traced is not None:
                chosen = {path: rank for path, rank in chosen.items() if _faster(_site(selected, path), rank, traced)}
            solved = work.last(solved, chosen)
        units: dict[str, Unit] = {}
        for path, rank in chosen.items():
            part = solved[path]
            units |= filled(model, part.site, part.decoder[..., :rank], part.encoder[:, :rank], part.shift(rank))
    except BaseException:
        pack(model, unpacked)
        raise
    commit(model, units)
    pack(model, unpacked)
    layers = [
        LayerReport.of(site, solved.get(site.path), chosen.get(site.path), size)
        for site, size in zip(selected, itemsizes, strict=True)
    ]
    nearest = NEAREST.get(solver) if any(site.kind == "experts" for site in selected) else None
    left = [site.path for site in unreached]
    return Factorisation(
        solver, asdict(budget) if named is None else {"ranks": named}, layers, before, parameters(model), left, nearest
    )


def _budget(budget: float | Budget, solver: str) -> Budget:
    if not isinstance(budget, Budget):
        return Budget(budget, "hull" if solver in SPECTRAL else "uniform")
    check_budget(budget, solver)
    return budget


def check_budget(budget: Budget, solver: str) -> None:
    """Raise ValueError where a solver does not tell what is needed to spend a budget."""
    if budget.needs_spectrum and solver not in SPECTRAL:
        raise ValueError(
            f"solver {solver!r} has no spectrum for a budget {budget.how!r}; uniform shares or one rank do without"
        )


def _cost(budget: Budget, traced: Trace | None, multiple: int) -> Cost:
    if budget.of == "parameters" or traced is None:
        return lambda site, rank: site.parameters(rank)
    if budget.of == "flops":
        positions = traced.positions

        def flops(site: Site, rank: int | None) -> float:
            if site.kind == "embedding":  # looking up is free, the second factor and a tied head are not
                looked_up = 0 if rank is None else 2 * positions[site.path] * rank * site.n
                return looked_up + (2 * positions[site.path] * site.parameters(rank) if site.also_head else 0)
            return 2 * positions[site.path] * site.parameters(rank)

        return flops
    return Latency(dict(traced.shapes), multiple)


@dataclass(frozen=True)
class _Work:
    """What the factors of the selected weights are made of.

    Attributes:
        model: The network.
        selected: The weights.
        traced: What the example went through, for solvers that calibrate.
        solver: Name of the solver.
        batches: Calibration data.
        original: The same batches as they are where nothing has been changed.
        loss: Loss of a model on a batch; None: the model's own.
        memory: Bytes of calibration statistics held at once.
        seed: Seed of solvers that draw, and of the probes of losses.
        gradients: Store of the gradients of a sequential solver with a loss.
        dense: Store of rows of a sequential solver.
        progress: Function that is called as work goes on.
    """

    model: nn.Module
    selected: Sequence[Site]
    traced: Trace | None
    solver: str
    batches: Sequence[Batch]
    original: Sequence[Batch]
    loss: Loss | None
    memory: float
    seed: int
    gradients: Gradients | None
    dense: DenseRows | None
    progress: Progress

    def first(self, highest: Mapping[str, int]) -> tuple[dict[str, Solved], dict[str, Tensor]]:
        """Factors of each site at the highest rank that it may get, and spectra; sites without one are left out.

        Solvers without a spectrum have neither yet, as their factors depend on the rank; sequential ones have factors
        of experts alone, and their gradients are stored in `gradients`.
        """
        if self.solver not in SPECTRAL:
            return {}, {}
        if self.solver in CALIBRATED:
            return self._calibrated(highest)
        solved = {}
        for index, site in enumerate(self.selected):
            if site.path in highest:
                solved[site.path] = solve(site, highest[site.path], self.solver, seed=self.seed)
            self.progress("factorising", (index + 1) / len(self.selected))
        return solved, _energies(solved)

    def _calibrated(self, highest: Mapping[str, int]) -> tuple[dict[str, Solved], dict[str, Tensor]]:
        assert self.traced is not None
        for site in self.selected:
            # Checked here, before it spreads and the data is blamed.
            if not site.matrices().isfinite().all():
                raise ValueError(f"{site.path}: the weight holds values that are not finite")
        needs = NEEDS[self.solver]
        loss = (self.loss or default(self.model, self.original, self.seed)) if "gradients" in needs else None
        # What is measured of the dense network is so on inputs that nothing has changed.
        statistics = covariances(
            self.model, self.traced, self.original, loss=loss, memory=self.memory, spectra="cross" in needs,
            dense=self.dense, progress=lambda share: self.progress("calibrating", share),
        )  # fmt: skip
        solved: dict[str, Solved] = {}
        energies: dict[str, Tensor] = {}
        for site, seen in statistics:
            if site.path not in highest:
                continue
            if "cross" not in needs or site.kind == "experts":
                by = NEAREST.get(self.solver, self.solver)
                solved[site.path] = solve(site, highest[site.path], by, seen)
                continue
            # Ranks are chosen by the dense inputs; factors come later, group by group.
            energies[site.path] = spectrum_of(site, NEAREST[self.solver], seen)
            if self.gradients is not None:
                self.gradients.keep(site, seen)
        return solved, energies | _energies(solved)

    def last(self, solved: dict[str, Solved], chosen: Mapping[str, int]) -> dict[str, Solved]:
        """The factors at the chosen ranks, for solvers that could not have them before."""
        if "cross" in NEEDS.get(self.solver, ()):
            assert self.traced is not None
            return sequential(
                self.model, self.traced, chosen, self.batches, original=self.original, gradients=self.gradients,
                dense=self.dense, solved=solved, memory=self.memory,
                progress=lambda share: self.progress("factorising", share),
            )  # fmt: skip
        if self.solver not in SPECTRAL:
            solved = {}
            for index, (path, rank) in enumerate(chosen.items()):
                solved[path] = solve(_site(self.selected, path), rank, self.solver, seed=self.seed + index)
                self.progress("factorising", (index + 1) / len(chosen))
        return solved


def _by_site(named: Mapping[str, int], selected: Sequence[Site]) -> dict[str, int]:
    """Ranks by the names of weights, of ranks by the paths of layers: a weight may have several.

    Raises:
        ValueError: A name is no path of a layer, or a weight has several ranks.
    """
    names = {path: site.path for site in selected for path in site.paths}
    by_site: dict[str, int] = {}
    for path, rank in named.items():
        if path not in names:
            raise ValueError(f"ranks are given by the paths of layers, and there is none at {path!r}")
        if by_site.setdefault(names[path], rank) != rank:
            raise ValueError(f"{path!r} shares its weight with another layer: give one rank for both")
    return by_site


def _reached(selected: Sequence[Site], traced: Trace, select: Select) -> tuple[list[Site], list[Site]]:
    """The weights that the data reaches, and the others.

    Raises:
        ValueError: Some of these were selected.
    """
    unreached = traced.unreached
    if unreached and select is not None:
        raise ValueError(
            f"the data does not reach {unreached[0].path!r}, one of {len(unreached)} such layers that are selected: "
            "leave them out, or do without a selection, and they stay dense"
        )
    return [site for site in selected if site not in unreached], unreached


def _energies(solved: Mapping[str, Solved]) -> dict[str, Tensor]:
    return {path: part.energies for path, part in solved.items() if part.energies is not None}


def _ranks(
    selected: Sequence[Site], energies: Mapping[str, Tensor], budget: Budget, cost: Cost, multiple: int
) -> dict[str, int]:
    layers = [Layer(site, energies.get(site.path, torch.zeros(1))) for site in selected]
    chosen = zip(selected, ranks(layers, budget, cost, multiple), strict=True)
    return {site.path: rank for site, rank in chosen if rank is not None}


def _site(selected: Iterable[Site], path: str) -> Site:
    return next(site for site in selected if site.path == path)


def _faster(site: Site, rank: int, traced: Trace) -> bool:
    times = measure(site, [rank], traced.shapes[site.path])
    return times[rank] < times[None]
