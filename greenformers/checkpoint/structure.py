"""Where a compressed network differs from the one its class builds, written into it and read back."""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import chain
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from greenformers.changes import _interface as interface
from greenformers.changes import int8
from greenformers.checkpoint.plugin import Structure
from greenformers.solve.walk import Unit, kind_of, pack, put, unit, units, unpack


def ranks_of(model: nn.Module) -> dict[str, int]:
    """The rank of every low-rank unit, by path."""
    return {path: made.rank for path, made in _parts(model) if not isinstance(made, int8.Plain)}


def ties_of(model: nn.Module) -> list[list[str]]:
    """Groups of paths whose low-rank units, or numbers of 8 bits, are shared."""
    groups: dict[int, list[str]] = {}
    for path, made in _parts(model):
        factor = made.decoder if hasattr(made, "decoder") else made
        groups.setdefault(id(getattr(factor, "weight", factor)), []).append(path)
    return [paths for paths in groups.values() if len(paths) > 1]


def _parts(model: nn.Module) -> Iterable[tuple[str, Any]]:
    eights = ((path, model.get_submodule(path)) for path in int8.int8_of(model))
    return chain(units(model), eights)


def structure(model: nn.Module) -> Structure:
    """Where a network differs from the one its class builds."""
    attention = {path: asdict(made) for path, made, _ in interface.swapped(model)}
    before = getattr(getattr(model, "config", None), "quantization_config", None)
    layers = before.layers if isinstance(before, Structure) else []
    return Structure(ranks_of(model), ties_of(model), attention, int8.int8_of(model), layers)


def mark(model: nn.Module) -> None:
    """Write into a `transformers` model's configuration where it differs, and keep its ties."""
    found = structure(model)
    if isinstance(model, PreTrainedModel) and not found.empty:
        # A configuration of its own: on the same one another, dense network may stand.
        shared, own = model.config, copy.copy(model.config)
        own.quantization_config = found
        for part in model.modules():
            if vars(part).get("config") is shared:
                vars(part)["config"] = own
        _tie(model)


def settle(model: PreTrainedModel) -> None:
    """What a network that was read anew needs before it is used."""
    mark(model)
    if any(True for _ in interface.swapped(model)):
        interface.use(model)
    if int8.is_quantised(model):
        model.requires_grad_(False)


def _tie(model: PreTrainedModel) -> None:
    """Tell `transformers` that units share their factors, in place of the dense weights that they shared.

    The first of a group is the one that is saved.
    """
    made = {path for path, _ in units(model)} | set(int8.int8_of(model))
    for prefix, part in model.named_modules(remove_duplicate=False):
        if not isinstance(part, PreTrainedModel):
            continue
        stem = f"{prefix}." if prefix else ""
        known = part._tied_weights_keys or {}
        weights = {stem + name.removesuffix(".weight"): name for name in (*known, *known.values())}
        gone = {name for path, name in weights.items() if path in made}
        kept = {
            target: origin
            for target, origin in known.items()
            if not {target, origin} & gone and not _was_swapped(part, target)
        }
        if prefix == "":
            kept |= {
                f"{path}.{name}": f"{group[0]}.{name}"
                for group in ties_of(model)
                for path in group[1:]
                for name in ("decoder", "encoder")
                if isinstance(model.get_submodule(path), Unit)
            }
            kept |= dict([*int8.shared(model), *interface.shared(model)])
        if kept != known:
            part._tied_weights_keys = kept
    model.all_tied_weights_keys = model.get_expanded_tied_weights_keys(all_submodels=True)


def _was_swapped(model: nn.Module, name: str) -> bool:
    """Whether a parameter is of a mechanism put in before: its layer may be gone since, or hold another."""
    owner, slot, _ = name.partition(f".{interface.SLOT}.")
    if not slot:
        return False
    module = dict(model.named_modules()).get(owner)
    return module is None or hasattr(module, interface.MADE)


def place(model: nn.Module, described: Structure) -> list[str]:
    """Change a network as a `Structure` says; what is put in is empty. The paths that are not there.

    Of a `transformers` model the prefix of the base model may be there or not, so that a head may come or go.

    Raises:
        ValueError: a path leads to something that cannot be changed so, or a number is out of range.
    """
    missing = _place_units(model, described.ranks, described.ties)
    at = {path: found for path in described.attention if (found := _find(model, path))}
    made = {}
    for path, where in at.items():
        try:
            made[where] = interface.Swapped(**described.attention[path])
            with torch.device(next(model.parameters()).device):
                mechanisms = interface.built(made)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error
    if made:
        interface.put(model, made, mechanisms)
    eights = {path: found for path in described.int8 if (found := _find(model, path))}
    int8.place(model, eights.values())
    for group in described.ties:
        members: list[Any] = [model.get_submodule(eights[path]) for path in group if path in eights]
        for member in members[1:]:
            int8.share(member, members[0])
    if isinstance(model, PreTrainedModel):
        _tie(model)
    return missing + [path for path in (*described.attention, *described.int8) if path not in at | eights]


def _find(model: nn.Module, path: str) -> str | None:
    stem = f"{model.base_model_prefix}." if isinstance(model, PreTrainedModel) and model.base_model_prefix else ""
    return _found(dict(model.named_modules(remove_duplicate=False)), path, stem)


def _place_units(model: nn.Module, ranks: Mapping[str, int], ties: Iterable[Iterable[str]]) -> list[str]:
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
        members = [at[path] for path in group if path in at]  # of units alone
        for place in members[1:]:
            other, origin = model.get_submodule(place), model.get_submodule(members[0])
            for name in ("decoder", "encoder"):
                if getattr(other, name).shape != getattr(origin, name).shape:
                    raise ValueError(f"{place} and {members[0]} cannot be tied: their factors differ in shape")
                setattr(other, name, getattr(origin, name))
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
