"""The stacks of layers of a model of transformers, and its configuration changed to count fewer layers."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from greenformers.model.block import Layer, number

OF_DECODERS = ("decoder_layers", "num_decoder_layers")
COUNTS = ("num_hidden_layers", "encoder_layers", "num_encoder_layers", "num_layers", "n_layer", "n_layers")
"""Names of the number of layers in configurations; those of decoders in an encoder-decoder are `OF_DECODERS`."""

PLACES = ("layer_idx", "layer_id")
"""Attributes with the number of a layer, by which a cache counts layers."""


def stacks(model: nn.Module) -> dict[str, nn.ModuleList]:
    """The outermost lists of layers of one kind that the configuration counts, by path.

    Raises:
        ValueError: There is none.
    """
    if not isinstance(model, PreTrainedModel):
        raise ValueError(
            f"{type(model).__name__} is not a model of transformers, whose configuration says how many layers it has"
        )
    by_path: dict[str, nn.ModuleList] = {}
    for path, part in model.named_modules():
        inside = any(path.startswith(f"{around}.") for around in by_path)
        if (
            isinstance(part, nn.ModuleList)
            and not inside
            and len(part) > 1
            and len({type(layer) for layer in part}) == 1
        ):
            layered = any(list(layer.children()) for layer in part)
            if layered and any(_counting(config, path, len(part)) for config in _configs(model, path)):
                by_path[path] = part
    if not by_path:
        raise ValueError(f"{type(model).__name__} has no stack of layers of which some could be kept")
    return by_path


def check_shorter(model: PreTrainedModel, remaining: Mapping[str, Sequence[int]]) -> None:
    """Check that a configuration of fewer layers builds the network that remains.

    Args:
        model: The whole network, left as it is.
        remaining: Numbers of the layers that remain of each stack, by path.

    Raises:
        ValueError: It does not.
    """
    name = type(model).__name__
    with torch.device("meta"):
        left = _dense(type(model), model.config)
        try:
            shorten(left, remaining)
            built = _dense(type(model), type(model.config).from_dict(left.config.to_dict()))
        except Exception as error:  # whatever configurations raise that do not fit
            line = " ".join(str(error).split())[:200]
            raise ValueError(f"{name} cannot do with fewer layers: its configuration refuses them: {line}") from error
    ours, theirs = ({key: x.shape for key, x in network.state_dict().items()} for network in (left, built))
    if ours != theirs:
        which = next(key for key in sorted(ours.keys() | theirs.keys()) if ours.get(key) != theirs.get(key))
        raise ValueError(f"{name} cannot do with fewer layers: {which} would have another shape")
    for path, places in remaining.items():
        _check_numbers(name, left.get_submodule(path), built.get_submodule(path), places)


def _check_numbers(name: str, left: Any, built: Any, places: Sequence[int]) -> None:
    """Check that layers are built the same where they have other numbers than before."""
    for now, (before, layer, again) in enumerate(zip(places, left, built, strict=True)):
        for ours, theirs in zip(layer.modules(), again.modules(), strict=False):
            for key, value in vars(ours).items():
                other = vars(theirs).get(key, value)
                # Stochastic depth is of training alone, and healing is without it.
                if type(value) not in (bool, int, float, str) or "drop" in key:
                    continue
                if value == other or (value, other) == (before, now):
                    continue
                raise ValueError(f"{name} cannot do with these layers: {key} of a layer depends on its number")


def _dense(cls: type[PreTrainedModel], config: Any) -> Any:
    own = copy.deepcopy(config)
    if hasattr(own, "quantization_config"):
        del own.quantization_config
    return cls(own)


def shorten(model: PreTrainedModel, remaining: Mapping[str, Sequence[int]]) -> None:
    """Drop layers, and count the remaining ones in the configurations of the model and of the models in it."""
    _own_configs(model)
    for path, places in remaining.items():
        stack: Any = model.get_submodule(path)
        count = len(stack)
        for config in {id(config): config for config in _configs(model, path)}.values():
            _shorten(config, path, count, places)
        for place in reversed(range(count)):
            if place not in places:
                del stack[place]
        for place, layer in enumerate(stack):
            for part in layer.modules():
                for name in PLACES:
                    if getattr(part, name, None) is not None:
                        setattr(part, name, place)
            if isinstance(layer, Layer):
                layer.index = place
        if any(isinstance(layer, Layer) for layer in stack):
            number(stack)
        if "decoder" in path.split("."):
            now = {before: place for place, before in enumerate(places)}
            realign(model, partial(_moved, now))


def _moved(now: Mapping[int, int], layer: int, head: int) -> tuple[int, int] | None:
    return (now[layer], head) if layer in now else None


def _own_configs(model: PreTrainedModel) -> None:
    """Give a network configurations of its own, as another one may hold the same."""
    copied: dict[int, Any] = {}
    for part in model.modules():
        held = vars(part).get("config")
        if isinstance(held, PreTrainedConfig):
            vars(part)["config"] = copy.deepcopy(held, copied)


def realign(model: PreTrainedModel, now: Callable[[int, int], tuple[int, int] | None]) -> None:
    """Number anew the heads by which Whisper tells the times of words.

    Args:
        model: The model.
        now: Function from the number of a decoder layer and of a head in it to those now; None where it is gone.
    """
    settings: Any = getattr(model, "generation_config", None)
    pairs = getattr(settings, "alignment_heads", None)
    if not pairs:
        return
    left = [list(pair) for layer, head in pairs if (pair := now(layer, head)) is not None]
    if left:
        settings.alignment_heads = left
    else:  # without any transformers says that there are no times of words
        del settings.alignment_heads


def _configs(model: PreTrainedModel, path: str) -> Iterator[PreTrainedConfig]:
    """The configuration of the smallest model around a path, and that of the whole."""
    around = [path[:end] for end in range(len(path)) if path[end] == "."]
    for stem in reversed(around):
        config = getattr(model.get_submodule(stem), "config", None)
        if isinstance(config, PreTrainedConfig):
            yield config
            break
    yield model.config


def _counting(config: PreTrainedConfig, path: str, count: int) -> list[str]:
    """The attributes of a configuration that hold the number of layers of a stack."""
    pair = getattr(config, "is_encoder_decoder", False)
    names = (*OF_DECODERS, *COUNTS) if not pair else OF_DECODERS if "decoder" in path.split(".") else COUNTS
    return [name for name in names if getattr(config, name, None) == count]


def _shorten(config: Any, path: str, count: int, places: Sequence[int]) -> None:
    names = _counting(config, path, count)
    for name in names:
        setattr(config, name, len(places))
    for name, value in list(vars(config).items()) if names else ():
        # What the configuration says of each layer: kinds of attention, windows.
        if isinstance(value, list) and len(value) == count and ("layer" in name or name == "attention_window"):
            setattr(config, name, [value[place] for place in places])
    stages = getattr(config, "stage_names", None)
    if names and stages is not None and len(stages) == count + 1:  # a backbone, whose layers are its stages
        last = config.out_features == stages[-1:]
        config.stage_names = stages[: len(places) + 1]
        if last:
            config.out_features = config.stage_names[-1:]
