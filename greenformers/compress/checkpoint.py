"""Where a compressed network differs from the dense one, written into it and read back: ranks by path, and ties."""

import copy
from collections.abc import Iterable, Mapping

from torch import nn
from transformers import PreTrainedModel

from greenformers.compress.quantizer import LowRankConfig
from greenformers.compress.walk import Unit, kind_of, pack, put, unit, units, unpack


def ranks_of(model: nn.Module) -> dict[str, int]:
    """The rank of every low-rank unit, by path."""
    return {path: made.rank for path, made in units(model)}


def ties_of(model: nn.Module) -> list[list[str]]:
    """Groups of paths whose units share their factors."""
    groups: dict[int, list[str]] = {}
    for path, made in units(model):
        groups.setdefault(id(made.decoder), []).append(path)
    return [paths for paths in groups.values() if len(paths) > 1]


def mark(model: nn.Module) -> None:
    """Write into a `transformers` model's configuration which of its maps are low rank, and keep its ties."""
    ranks = ranks_of(model)
    if isinstance(model, PreTrainedModel) and ranks:
        # A configuration of its own: on the same one another, dense network may stand.
        shared, own = model.config, copy.copy(model.config)
        own.quantization_config = LowRankConfig(ranks, ties_of(model))
        for part in model.modules():
            if vars(part).get("config") is shared:
                vars(part)["config"] = own
        _tie(model)


def _tie(model: PreTrainedModel) -> None:
    """Tell `transformers` that units share their factors, in place of the dense weights that they shared.

    The first of a group is the one that is saved.
    """
    made = dict(units(model))
    for prefix, part in model.named_modules(remove_duplicate=False):
        if not isinstance(part, PreTrainedModel):
            continue
        stem = f"{prefix}." if prefix else ""
        known = part._tied_weights_keys or {}
        weights = {stem + name.removesuffix(".weight"): name for name in (*known, *known.values())}
        gone = {name for path, name in weights.items() if path in made}
        kept = {target: origin for target, origin in known.items() if not {target, origin} & gone}
        if prefix == "":
            kept |= {
                f"{path}.{name}": f"{group[0]}.{name}"
                for group in ties_of(model)
                for path in group[1:]
                for name in ("decoder", "encoder")
            }
        if kept != known:
            part._tied_weights_keys = kept
    model.all_tied_weights_keys = model.get_expanded_tied_weights_keys(all_submodels=True)


def place(model: nn.Module, ranks: Mapping[str, int], ties: Iterable[Iterable[str]] = ()) -> list[str]:
    """Put empty units in the place of dense maps, as `ranks_of` and `ties_of` said. The paths that are not there.

    Of a `transformers` model the prefix of the base model may be there or not, so that a head may come or go.

    Raises:
        ValueError: a path leads to something that has no low-rank form, or a rank is out of range.
    """
    shared = model.get_expanded_tied_weights_keys(all_submodels=True) if isinstance(model, PreTrainedModel) else {}
    unpacked = unpack(model)
    named = dict(model.named_modules(remove_duplicate=False))
    stem = f"{model.base_model_prefix}." if isinstance(model, PreTrainedModel) and model.base_model_prefix else ""
    at = {path: found for path in ranks if (found := _found(named, path, stem))}
    first: dict[int, Unit] = {}
    for path, place in at.items():
        module = named[place]
        try:
            made = first.setdefault(id(module), unit(module, ranks[path]))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error
        put(model, place, made)
    _follow(model, shared)
    pack(model, unpacked)
    for group in ties:
        members = [at[path] for path in group if path in at]
        for place in members[1:]:
            other, origin = model.get_submodule(place), model.get_submodule(members[0])
            for name in ("decoder", "encoder"):
                if getattr(other, name).shape != getattr(origin, name).shape:
                    raise ValueError(f"{place} and {members[0]} cannot be tied: their factors differ in shape")
                setattr(other, name, getattr(origin, name))
    if isinstance(model, PreTrainedModel):
        _tie(model)
    return [path for path in ranks if path not in at]


def _follow(model: nn.Module, shared: Mapping[str, str]) -> None:
    """A map that is tied to one which is low rank now becomes so too: a head that comes, and reads the table."""
    made = dict(units(model))
    for target, origin in shared.items():
        path, other = target.removesuffix(".weight"), made.get(origin.removesuffix(".weight"))
        if other is not None and path not in made and path != target and kind_of(model.get_submodule(path)):
            tied = unit(model.get_submodule(path), other.rank)
            tied.decoder, tied.encoder = other.decoder, other.encoder
            put(model, path, tied)


def _found(named: Mapping[str, nn.Module], path: str, stem: str) -> str | None:
    for found in (path, path.removeprefix(stem), stem + path):
        if found and found in named:
            return found
    return None
