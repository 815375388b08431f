"""Fewer layers: a student made of some of the teacher's, to be healed. Sanh 2019, arXiv:1910.01108 (DistilBERT)."""

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from greenformers.checkpoint.plugin import Structure
from greenformers.checkpoint.structure import mark, structure

COUNTS = ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_layers", "num_decoder_layers")
"""How configurations name the number of layers of a stack."""


def spread(count: int, keep: int) -> list[int]:
    """Which of `count` layers to keep: evenly spread, the first one always, and the last one where there are two."""
    return [round(place * (count - 1) / max(1, keep - 1)) for place in range(keep)]


def drop_layers(model: PreTrainedModel, keep: int) -> list[int]:
    """Keep so many layers of a network's stack, in place. Nothing is changed if this raises.

    Args:
        model: with one stack of layers, such as an encoder or a language model.
        keep: how many.

    Returns:
        Which, from 0.

    Raises:
        ValueError: there is no one stack of layers, or not so many; or its layers are one, repeated.
    """
    found = stack(model)
    count = len(found)
    if not 1 <= keep < count:
        raise ValueError(f"layers to keep must be in 1..{count - 1}, of {count}; got {keep}")
    kept = spread(count, keep)
    config: Any = model.config.get_text_config()
    before = structure(model).layers or list(range(count))
    kinds = getattr(config, "layer_types", None)
    for place in reversed(range(count)):
        if place not in kept:
            del found[place]
    for place, layer in enumerate(found):
        for part in layer.modules():  # a cache counts layers by it
            if getattr(part, "layer_idx", None) is not None:
                part.layer_idx = place  # type: ignore[assignment]
    for name in COUNTS:
        if getattr(config, name, None) == count:
            setattr(config, name, keep)
    if kinds is not None:
        config.layer_types = [kinds[place] for place in kept]
    _note(model, [before[place] for place in kept])
    return kept


def stack(model: PreTrainedModel) -> nn.ModuleList:
    """The stack of layers of a network.

    Raises:
        ValueError: there is none, or more than one.
    """
    config = model.config.get_text_config()
    count = getattr(config, "num_hidden_layers", None)
    found = [
        part
        for part in model.modules()
        if isinstance(part, nn.ModuleList) and len(part) == count and len({type(layer) for layer in part}) == 1
    ]
    outer = [part for part in found if not any(part in set(other.modules()) - {other} for other in found)]
    if getattr(model.config, "is_encoder_decoder", False) or len(outer) != 1:
        raise ValueError(
            f"{type(model).__name__} has no one stack of layers, of which some could be kept; an encoder or a "
            "language model has"
        )
    return outer[0]


def _note(model: PreTrainedModel, layers: list[int]) -> None:
    found = structure(model)
    model.config.quantization_config = Structure(found.ranks, found.ties, found.attention, found.int8, layers)
    mark(model)
