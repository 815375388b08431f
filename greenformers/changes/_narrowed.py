"""The description of a network with fewer hidden coordinates, and its placement in one of its class."""

import copy
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from greenformers.changes._paths import check_keys, located
from greenformers.model._transformers import all_ties
from greenformers.solve.hidden_width import HiddenWidth
from greenformers.solve.narrow import Exchange, exchanged, rms_norm
from greenformers.solve.unchanged import outputs
from greenformers.solve.watch import Batch

NARROWED = "_hidden_coordinates_left"
"""Attribute of a module with the description of each of its children that holds fewer coordinates, by name."""

KEYS = ("width", "dimensions", "bias", "eps")


def mark(model: nn.Module, width: HiddenWidth, narrow: int) -> None:
    """Note in the modules around the layers of a hidden width what is left of them."""
    for path, dimensions in width.dimensions.items():
        module = model.get_submodule(path)
        entry: dict[str, Any] = {"width": narrow, "dimensions": {}}
        for name, at in dimensions:
            entry["dimensions"].setdefault(name, []).append(at)
        entry["bias"] = path in width.readers and getattr(module, "bias", None) is not None
        entry["eps"] = module.eps if type(module) is nn.RMSNorm else None
        _note(model, path, entry)


def _note(model: nn.Module, path: str, entry: dict[str, Any]) -> None:
    around, _, name = path.rpartition(".")
    parent: Any = model.get_submodule(around)
    setattr(parent, NARROWED, {**getattr(parent, NARROWED, {}), name: entry})


def described(model: nn.Module) -> dict[str, Any] | None:
    """What is left of each module with fewer hidden coordinates, by path; None where there is none."""
    entries = {
        f"{path}.{name}" if path else name: entry
        for path, module in model.named_modules()
        for name, entry in getattr(module, NARROWED, {}).items()
    }
    return entries or None


def place(model: nn.Module, description: Any) -> list[str]:
    """Put empty parameters of fewer coordinates into a network. The paths that it does not have.

    Raises:
        ValueError: It is not such a description, or does not fit the network.
    """
    _check(description)
    at = located(model, description)
    shared: dict[tuple[int, str], nn.Parameter] = {}
    with exchanged(model) as exchange:
        for path, where in at.items():
            _shrink(exchange, where, description[path], shared)
    for path, where in at.items():
        _note(model, where, description[path])
    return [path for path in description if path not in at]


def _shrink(exchange: Exchange, path: str, entry: dict[str, Any], shared: dict[tuple[int, str], nn.Parameter]) -> None:
    module = exchange.model.get_submodule(path)
    held = dict(module.named_parameters(recurse=False))
    values = {}
    for name, dimensions in entry["dimensions"].items():
        shape = list(held[name].shape) if name in held else []
        if not all(at < len(shape) and shape[at] >= entry["width"] for at in dimensions):
            raise ValueError(f"{path} has no {name} of {entry['width']} coordinates or more in {dimensions}")
        for at in dimensions:
            shape[at] = entry["width"]
        empty = nn.Parameter(held[name].new_empty(shape), held[name].requires_grad)
        values[name] = shared.setdefault((id(held[name]), str(dimensions)), empty)
    if entry["bias"] and "bias" not in held:
        if not isinstance(module, nn.Linear):
            raise ValueError(f"{path} is no linear layer: it cannot have a bias")
        values["bias"] = nn.Parameter(module.weight.new_empty(module.out_features), module.weight.requires_grad)
    if entry["eps"] is None:
        exchange.parameters(path, values)
    elif len(held) in (1, 2) and all(x.dim() == 1 for x in held.values()):
        exchange.module(path, rms_norm(module, entry["width"], entry["eps"]))
    else:
        raise ValueError(f"{path} is no norm: it has no eps")


def _check(description: Any) -> None:
    if not isinstance(description, dict) or not description:
        raise ValueError("the description of a narrower network must be modules by path")
    for path, entry in description.items():
        check_keys(f"the hidden coordinates of {path}", entry, KEYS)
        width, dimensions, bias, eps = (entry[key] for key in KEYS)
        whole = isinstance(dimensions, dict) and all(
            isinstance(name, str)
            and isinstance(at, list)
            and at
            and all(type(number) is int and number >= 0 for number in at)
            for name, at in dimensions.items()
        )
        if type(width) is not int or width < 1 or not whole or type(bias) is not bool:
            raise ValueError(
                f"the hidden coordinates of {path} must be a width, dimensions by parameter, and a bias or not"
            )
        if eps is not None and not (type(eps) is float and eps >= 0):
            raise ValueError(f"the eps of {path} must be a number from 0 on, or none; got {eps!r}")


def configure(model: PreTrainedModel, width: int, narrow: int, batch: Batch) -> bool:
    """Have the configuration say what is true of the narrower network, as far as its class builds that from it.

    A head that no longer shares its weight with the embedding is said to be apart. The hidden size is that of the
    narrower network where its class builds the same from it, as where the size of a head is an option of its own;
    elsewhere it stays that of the network before, which the description then makes narrower.

    Args:
        model: The narrower network, which has been marked.
        width: Its hidden size before.
        narrow: Its hidden size now.
        batch: A batch, by which it is seen that it computes the same by either configuration.

    Returns:
        Whether the head has been parted from the embedding.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    ties = ((parameters.get(target), parameters.get(origin)) for target, origin in all_ties(model).items())
    parted = any(a is not b for a, b in ties if a is not None and b is not None)
    if parted:
        _set_config(model, tie_word_embeddings=False)
    if getattr(model.config, "hidden_size", None) == width:
        _resize(model, width, narrow, batch)
    return parted


def _set_config(model: PreTrainedModel, **values: Any) -> None:
    """Set options in a configuration of the model's own, since another network may use the same object."""
    shared: Any = model.config
    own = _with(shared, values)
    for part in model.modules():
        if vars(part).get("config") is shared:
            vars(part)["config"] = own


def _with(config: Any, values: dict[str, Any]) -> Any:
    own = copy.copy(config)
    for name, value in values.items():
        setattr(own, name, value)
    return own


def _resize(model: PreTrainedModel, width: int, narrow: int, batch: Batch) -> None:
    """Set the hidden size in the configuration and where modules hold it, if the class then builds the same network."""
    numbers = _numbers_of_class(model, width, narrow)
    if numbers is None:
        return
    config, before = model.config, outputs(model, batch)
    _set_config(model, hidden_size=narrow)
    for module, name in numbers:
        setattr(module, name, narrow)
    # Equal to the bit, since a network that is read again must be: some scale their outputs by the hidden size.
    if not all(map(torch.equal, outputs(model, batch), before)):
        own = model.config
        for part in model.modules():
            if vars(part).get("config") is own:
                vars(part)["config"] = config
        for module, name in numbers:
            setattr(module, name, width)


def _numbers_of_class(model: PreTrainedModel, width: int, narrow: int) -> list[tuple[nn.Module, str]] | None:
    """The numbers, of the modules of a narrower network, that its class sets to its hidden size.

    None where the class builds from this size something else than what the description makes of the network before.
    """
    config: Any = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        placed = type(model)(copy.copy(config))
        place(placed, described(model))
        try:
            built = type(model)(_with(config, {"hidden_size": narrow}))
        except Exception:  # whatever classes raise that this size does not fit, as where heads do not divide it
            return None
    shapes = [
        {name: x.shape for name, x in (*network.named_parameters(), *network.named_buffers())}
        for network in (placed, built)
    ]
    if shapes[0] != shapes[1]:
        return None
    own, modules, numbers = dict(model.named_modules()), dict(built.named_modules()), []
    for path, module in placed.named_modules():
        held = vars(modules[path]) if type(module) is type(modules[path]) else {}
        for name, value in vars(module).items():
            if type(value) not in (int, float) or name.startswith("_") or held.get(name, value) == value:
                continue
            if (value, held[name]) != (width, narrow):
                return None
            if path in own and vars(own[path]).get(name) == width:
                numbers.append((own[path], name))
    return numbers
