"""The call of `greenformer` 0.2.2, toolkit of the Greenformers thesis (Cahyawijaya 2021), and a reader of its files."""

from collections.abc import Mapping, Sequence
from copy import deepcopy as copy_of
from typing import Any, get_args

import torch
from torch import Tensor, nn

from greenformers.checkpoint.structure import mark
from greenformers.lowrank.convolution import LowRankConv
from greenformers.lowrank.embedding import LowRankEmbedding
from greenformers.lowrank.factorize import factorize
from greenformers.solve.units import Unit, commit, expand, factor_names, factors, filled, pack, put, unit, units, unpack
from greenformers.solve.walk import Convolution, Site, kind_of, sites

SOLVERS = {"random": "random", "svd": "svd", "randomized": "randomized", "nmf": "nmf", "snmf": "semi_nmf"}
"""Our solver for each name in `greenformer`; its "svd" is our "randomized", for which there is a name too."""


def auto_fact(
    module: nn.Module,
    rank: float,
    solver: str = "random",
    num_iter: int = 10,  # noqa: ARG001
    submodules: Sequence[nn.Module] | None = None,
    deepcopy: bool = False,
    fact_led_unit: bool = False,
) -> nn.Module:
    """Factorise all linear layers and convolutions of a network to one rank.

    Args:
        module: A network, or a single layer.
        rank: Below 1 a share of the limit r_max = int(m n / (m + n)) of each weight, and so of its parameters; from 1
            on the rank itself. Weights whose limit is not above the rank stay dense.
        solver: "random", "svd", "randomized", "nmf" or "snmf".
        num_iter: Ignored, for compatibility: "svd" is exact here, and the non-negative solvers run until they converge.
        submodules: Modules in which layers are factorised; by default the whole network.
        deepcopy: Leave the network as it is and return a changed copy.
        fact_led_unit: Factorise layers again that are low rank already, if that lowers their rank.

    Returns:
        The network, changed in place unless `deepcopy`; a new unit where it is a single layer.

    Raises:
        ValueError: A value is out of range, or a weight is not finite.
    """
    if solver not in SOLVERS:
        raise ValueError(f"solver must be one of {', '.join(SOLVERS)}; got {solver!r}")
    if not rank > 0 or (rank >= 1 and rank != int(rank)):
        raise ValueError(f"rank must be a share in (0, 1) or a whole number from 1 on, got {rank}")
    if submodules is not None and not submodules:
        raise ValueError("submodules must name at least one module, or be None for all")
    root = nn.ModuleDict({"it": module})
    paths = None if submodules is None else _paths(root, submodules)
    if deepcopy:
        root = copy_of(root)
    unpacked = unpack(root)
    before: dict[str, Unit] = {}
    replacements: dict[str, Unit] = {}
    try:
        if fact_led_unit:
            before = _again(root, rank, paths)
            expand(root, before.items())
        selected = sites(root, lambda path, part: kind_of(part) in ("linear", "conv") and _within(path, paths))
        for site in selected:
            if chosen := _rank(site.m, site.n, rank):
                # Drawn as torch draws: differently each time, and again the same after torch.manual_seed.
                seed = 0 if solver in ("svd", "randomized") else int(torch.randint(2**31, ()))
                replacements |= filled(root, site, *_factors(site, chosen, SOLVERS[solver], seed))
    except BaseException:
        for path, unit_ in before.items():
            put(root, path, unit_)
        pack(root, unpacked)
        raise
    commit(root, replacements)
    pack(root, unpacked)
    mark(root["it"])
    return root["it"]


def _paths(root: nn.Module, submodules: Sequence[nn.Module]) -> list[str]:
    ids = {id(part) for part in submodules}
    paths = [path for path, part in root.named_modules(remove_duplicate=False) if id(part) in ids]
    if not paths:
        raise ValueError("none of the submodules is a part of the network")
    return paths


def _within(path: str, parts: Sequence[str] | None) -> bool:
    return parts is None or any(path == part or path.startswith(f"{part}.") for part in parts)


def _rank(m: int, n: int, rank: float) -> int | None:
    limit = m * n // (m + n)
    chosen = int(limit * rank) if rank < 1 else int(rank)
    return chosen if 0 < chosen < limit else None


def _factors(site: Site, rank: int, solver: str, seed: int) -> tuple[Tensor, Tensor]:
    try:
        by_group = [factorize(W, rank, solver, seed=seed) for W in site.matrices()]
    except ValueError as error:
        raise ValueError(f"{site.path}: {error}") from error
    return torch.stack([part.decoder for part in by_group]), torch.stack([part.encoder for part in by_group])


def _again(root: nn.Module, rank: float, parts: Sequence[str] | None) -> dict[str, Unit]:
    """The units whose rank would be lowered, by path, with all units that share their factors."""
    lower = set()
    for path, low_rank in units(root):
        if _within(path, parts) and not isinstance(low_rank, LowRankEmbedding):
            groups = low_rank.groups if isinstance(low_rank, LowRankConv) else 1
            D, E = factors(low_rank)
            if (chosen := _rank(len(D) // groups, E[0].numel(), rank)) and chosen < low_rank.rank:
                lower.add(id(D))
    return {path: low_rank for path, low_rank in units(root) if id(factors(low_rank)[0]) in lower}


def read_greenformer(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Put the low-rank units and weights of a `greenformer` 0.2.2 state dict into a dense network, in place.

    Args:
        model: The network as it was before `greenformer` changed it.
        state: State dict with keys `*.led_unit.{0,1}.weight`, `*.led_unit.1.bias`, and `ced_unit` for convolutions;
            read it from safetensors, or with `torch.load(..., weights_only=True)`.

    Raises:
        ValueError: The state has no factorised weight, or does not fit the network.
    """
    first = [key for key in state if key.endswith(("led_unit.0.weight", "ced_unit.0.weight"))]
    if not first:
        raise ValueError("the state has no led_unit or ced_unit: it is not of a network factorised by greenformer")
    if any(key.startswith(("led_unit.", "ced_unit.")) for key in first):
        raise ValueError(
            "the network is a single layer, which cannot be replaced in place: put it into an nn.Sequential"
        )
    target = nn.ModuleDict({"it": copy_of(model)})
    weights = {f"it.{key}": value for key, value in state.items()}
    for key in first:
        path = f"it.{key}".rsplit(".led_unit", 1)[0].rsplit(".ced_unit", 1)[0]
        stem = f"it.{key}".removesuffix(".0.weight")
        try:
            module = target.get_submodule(path)
        except AttributeError as error:
            raise ValueError(f"the network has no {path.removeprefix('it.')!r}") from error
        groups: Any = module.groups if isinstance(module, get_args(Convolution)) else 1
        try:
            low_rank = unit(module, len(weights[f"{stem}.0.weight"]) // groups)
            decoder, encoder = factor_names(low_rank)
            weights[f"{path}.{encoder}"] = weights.pop(f"{stem}.0.weight")
            weights[f"{path}.{decoder}"] = weights.pop(f"{stem}.1.weight").reshape(factors(low_rank)[0].shape)
        except (TypeError, ValueError, KeyError, RuntimeError) as error:
            raise ValueError(f"{path.removeprefix('it.')}: {error}") from error
        put(target, path, low_rank)
        if f"{stem}.1.bias" in weights:
            weights[f"{path}.bias"] = weights.pop(f"{stem}.1.bias")
    try:
        target.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"the state does not fit the network: {' '.join(str(error).split())}") from error
    with torch.no_grad():
        for path, low_rank in units(target):
            put(model, path.removeprefix("it."), low_rank)
        model.load_state_dict(target["it"].state_dict())
    mark(model)
