"""The low-rank units of a network: their description, their placement in a dense network, and their ties."""

from collections.abc import Iterable, Mapping
from typing import Any, get_args

from torch import nn
from transformers import PreTrainedModel

from greenformers.changes._paths import check_keys, check_paths, located
from greenformers.changes._report import UnitReport
from greenformers.model._transformers import all_ties
from greenformers.solve.result import LayerReport
from greenformers.solve.units import Unit, factor_names, factors, pack, put, share, unit, units, unpack
from greenformers.solve.walk import kind_of


def ranks_of(model: nn.Module) -> dict[str, int]:
    """The rank of every low-rank unit by path."""
    return {path: module.rank for path, module in units(model)}


def groups_of(model: nn.Module) -> list[list[str]]:
    """Groups of paths whose low-rank units share their factors, where these are parameters."""
    paths: dict[int, list[str]] = {}
    for path, module in units(model):
        decoder, _ = factors(module)
        if isinstance(decoder, nn.Parameter):
            paths.setdefault(id(decoder), []).append(path)
    return [group for group in paths.values() if len(group) > 1]


def ties(model: nn.Module) -> Iterable[tuple[str, str]]:
    """Factors with several names: (name, name of the first)."""
    by_path = dict(units(model))
    for first, *others in groups_of(model):
        for path in others:
            names = zip(factor_names(by_path[path]), factor_names(by_path[first]), strict=True)
            yield from ((f"{path}.{name}", f"{first}.{saved}") for name, saved in names)


def checked(description: Any) -> tuple[dict[str, int], list[list[str]]]:
    """The ranks by path and groups of paths of a description from an untrusted file.

    Raises:
        ValueError: The description is not of this form.
    """
    check_keys("the description of low-rank units", description, ("ranks", "ties"))
    ranks, groups = description["ranks"], description["ties"]
    if not isinstance(ranks, dict) or not all(
        isinstance(path, str) and type(rank) is int and rank >= 1 for path, rank in ranks.items()
    ):
        raise ValueError("ranks must be whole numbers from 1 on, by path")
    if not isinstance(groups, list):
        raise ValueError("ties must be lists of paths")
    for group in groups:
        check_paths("ties", group)
    return ranks, groups


def place(model: nn.Module, ranks: Mapping[str, int], groups: Iterable[Iterable[str]]) -> list[str]:
    """Put empty units at paths. The paths that the network does not have.

    Raises:
        ValueError: A module has no low-rank form, a rank is out of range, or tied factors differ in shape.
    """
    shared = all_ties(model) if isinstance(model, PreTrainedModel) else {}
    unpacked = unpack(model)
    at = located(model, ranks)
    first: dict[int, Unit] = {}
    for path, where in at.items():
        module = model.get_submodule(where)
        if isinstance(module, get_args(Unit)) and module.rank == ranks[path]:
            continue  # which the class itself builds as low rank
        try:
            low_rank = first.setdefault(id(module), unit(module, ranks[path]))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error
        put(model, where, low_rank)
    _follow(model, shared)
    pack(model, unpacked)
    for group in groups:
        members = [at[path] for path in group if path in at]
        for where in members[1:]:
            _tie(model.get_submodule(where), model.get_submodule(members[0]), f"{where} and {members[0]}")
    return [path for path in ranks if path not in at]


def _tie(module: Any, first: Any, which: str) -> None:
    for ours, theirs in zip(factors(module), factors(first), strict=True):
        if ours.shape != theirs.shape:
            raise ValueError(f"{which} cannot be tied: their factors differ in shape")
    share(module, first)


def _follow(model: nn.Module, shared: Mapping[str, str]) -> None:
    """Make linear layers low rank that are tied to a layer which now is, as an added head is to the embedding."""
    by_path = dict(units(model))
    for target, origin in shared.items():
        path, source = target.removesuffix(".weight"), by_path.get(origin.removesuffix(".weight"))
        if source is not None and path not in by_path and path != target and kind_of(model.get_submodule(path)):
            tied = unit(model.get_submodule(path), source.rank)
            share(tied, source)
            put(model, path, tied)


def reported(layer: LayerReport) -> UnitReport:
    """What became of a weight that was to be factorised."""
    before, after = layer.itemsize * layer.parameters_before, layer.itemsize * layer.parameters_after
    form = "dense" if layer.rank is None else f"rank {layer.rank}"
    return UnitReport(layer.path, form, before, after, layer.predicted, layer.achieved, layer.tied)
