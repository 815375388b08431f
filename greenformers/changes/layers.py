"""Fewer layers: a student made of some of its teacher's, to be healed. Sanh 2019, arXiv:1910.01108 (DistilBERT)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from greenformers.changes._contract import Change, Given, Report, UnitReport, option

if TYPE_CHECKING:
    from torch import nn

LEFT = "_layers_left"
COUNTS = ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_layers", "num_decoder_layers")
"""How configurations name the number of layers of a stack."""


@dataclass(frozen=True)
class Layers(Change):
    """Fewer layers, evenly spread: the first one, the last one, and those between."""

    keep: int | None = option(None, "How many layers to keep; half of them if not given.", "--keep-layers")

    order: ClassVar[int] = 20

    def __post_init__(self) -> None:
        if self.keep is not None and self.keep < 1:
            raise ValueError(f"layers to keep must be at least 1, got {self.keep}")

    @property
    def label(self) -> str:
        """Such as "3 layers"."""
        return "half the layers" if self.keep is None else f"{self.keep} layers"

    def check(self, model: "nn.Module", before: Sequence[type[Change]], given: Given) -> None:
        """See besides that there is one stack, of more layers than are to be kept."""
        super().check(model, before, given)
        self._number(len(_stack(model)))

    def _number(self, count: int) -> int:
        keep = max(1, count // 2) if self.keep is None else self.keep
        if not 1 <= keep < count:
            raise ValueError(f"layers to keep must be in 1..{count - 1}, of {count}; got {keep}")
        return keep

    def apply(self, model: "nn.Module", given: Given) -> Report:
        """Drop layers of the network's stack.

        Raises:
            ValueError: there is no one stack of layers, or not so many; or its layers are one, repeated.
        """
        from greenformers.changes._options import as_dict

        stack = _stack(model)
        count = len(stack)
        kept = spread(count, self._number(count))
        left = getattr(model, LEFT, None) or list(range(count))
        path = next(path for path, part in model.named_modules() if part is stack)
        sizes = [sum(x.numel() * x.element_size() for x in layer.parameters()) for layer in stack]
        _drop(model, stack, kept)
        setattr(model, LEFT, [left[place] for place in kept])
        units = [
            UnitReport(f"{path}.{place}", *(("kept", size, size) if place in kept else ("dropped", size, 0)))
            for place, size in enumerate(sizes)
        ]
        return Report(as_dict(self), f"of {count} layers {', '.join(map(str, kept))} are left", units)

    @classmethod
    def describe(cls, model: "nn.Module") -> Any:
        """Which of the original's layers are left."""
        return getattr(model, LEFT, None)

    @classmethod
    def place(cls, model: "nn.Module", description: Any) -> list[str]:
        """Note which layers they were: how many there are the configuration says."""
        if not isinstance(description, list) or not all(type(layer) is int and layer >= 0 for layer in description):
            raise ValueError("the layers that are left must be a list of whole numbers from 0 on")
        setattr(model, LEFT, list(description))
        return []

    @classmethod
    def suggested(cls, *, length: int, causal: bool) -> "Sequence[Layers]":
        """None: without healing no share of the layers keeps what texts could judge."""
        return []


def spread(count: int, keep: int) -> list[int]:
    """Which of `count` layers to keep: evenly spread, the first one always, and the last one where there are two."""
    return [round(place * (count - 1) / max(1, keep - 1)) for place in range(keep)]


def _stack(model: "nn.Module") -> "nn.ModuleList":
    """The stack of layers of a network.

    Raises:
        ValueError: there is none, or more than one.
    """
    from torch import nn
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise ValueError(
            f"{type(model).__name__} is no model of transformers, whose configuration would say how many layers it has"
        )
    count = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    lists = [
        part
        for part in model.modules()
        if isinstance(part, nn.ModuleList) and len(part) == count and len({type(layer) for layer in part}) == 1
    ]
    outer = [part for part in lists if not any(part in set(other.modules()) - {other} for other in lists)]
    if getattr(model.config, "is_encoder_decoder", False) or len(outer) != 1:
        raise ValueError(
            f"{type(model).__name__} has no one stack of layers, of which some could be kept; an encoder or a "
            "language model has"
        )
    return outer[0]


def _drop(model: Any, stack: "nn.ModuleList", kept: Sequence[int]) -> None:
    config, count = model.config.get_text_config(), len(stack)
    kinds = getattr(config, "layer_types", None)
    for place in reversed(range(count)):
        if place not in kept:
            del stack[place]
    for place, layer in enumerate(stack):
        for part in layer.modules():  # a cache counts layers by it
            if getattr(part, "layer_idx", None) is not None:
                part.layer_idx = place  # type: ignore[assignment]
    for name in COUNTS:
        if getattr(config, name, None) == count:
            setattr(config, name, len(kept))
    if kinds is not None:
        config.layer_types = [kinds[place] for place in kept]
