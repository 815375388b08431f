"""Fewer layers: a student with some layers of its teacher, to be healed. Sanh 2019, arXiv:1910.01108 (DistilBERT)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from greenformers.changes._contract import Change, Given, Report, UnitReport, option

if TYPE_CHECKING:
    from torch import nn

LEFT = "_layers_left"


@dataclass(frozen=True)
class Layers(Change):
    """Fewer layers, evenly spread: the first one, the last one, and those between."""

    keep: int | None = option(None, "Number of layers to keep; by default half of them.", "--keep-layers")

    order: ClassVar[int] = 20
    built_by_the_class: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.keep is not None and self.keep < 1:
            raise ValueError(f"layers to keep must be at least 1, got {self.keep}")

    @property
    def label(self) -> str:
        """The number of layers, as in "3 layers"."""
        return "half the layers" if self.keep is None else f"{self.keep} layers"

    def check(self, model: "nn.Module", before: Sequence[type[Change]], given: Given) -> None:
        """Check also that a stack has more layers than are to be kept, and that the configuration can count fewer."""
        from greenformers.changes._stacks import check_shorter

        super().check(model, before, given)
        network: Any = model
        check_shorter(network, self._remaining(model))

    def _remaining(self, model: "nn.Module") -> dict[str, list[int]]:
        """Numbers of the layers that remain, for each stack with more than that."""
        from greenformers.changes._stacks import stacks

        counts = {path: len(stack) for path, stack in stacks(model).items()}
        keep = {path: count // 2 if self.keep is None else self.keep for path, count in counts.items()}
        remaining = {path: spread(count, keep[path]) for path, count in counts.items() if keep[path] < count}
        if not remaining:
            most = max(counts.values())
            raise ValueError(f"layers to keep must be in 1..{most - 1}, of {most}; got {self.keep}")
        return remaining

    def apply(self, model: "nn.Module", given: Given) -> Report:
        """Drop layers of the network's stacks; in an encoder-decoder of both.

        Raises:
            ValueError: No stack has more layers than are to be kept, or the configuration cannot count fewer.
        """
        from greenformers.changes._options import as_dict
        from greenformers.changes._stacks import check_shorter, shorten

        network: Any = model
        remaining = self._remaining(model)
        check_shorter(network, remaining)
        left = getattr(model, LEFT, {})
        units = []
        for path, places in remaining.items():
            stack: Any = model.get_submodule(path)
            before = left.get(path, list(range(len(stack))))
            left = left | {path: [before[place] for place in places]}
            for place, layer in enumerate(stack):
                size = sum(x.numel() * x.element_size() for x in layer.parameters())
                state = ("kept", size, size) if place in places else ("dropped", size, 0)
                units.append(UnitReport(f"{path}.{place}", *state))
        counts = {path: len(network.get_submodule(path)) for path in remaining}
        shorten(network, remaining)
        setattr(model, LEFT, left)
        listed = [f"{', '.join(map(str, remaining[path]))} of {count}" for path, count in counts.items()]
        names = [f" of {path}" if len(remaining) > 1 else "" for path in remaining]
        summary = "; ".join(f"layers {numbers}{name} are left" for numbers, name in zip(listed, names, strict=True))
        return Report(as_dict(self), summary, units)

    @classmethod
    def describe(cls, model: "nn.Module") -> Any:
        """Numbers of the original's layers that remain, by the path of their stack."""
        return getattr(model, LEFT, None)

    @classmethod
    def place(cls, model: "nn.Module", description: Any) -> list[str]:
        """Record which of the original's layers remain; their number is in the configuration."""
        if not isinstance(description, dict) or not description or not all(map(_is_places, description.values())):
            raise ValueError(
                "the layers that are left must be lists of whole numbers from 0 on, by the path of their stack"
            )
        setattr(model, LEFT, {str(path): list(places) for path, places in description.items()})
        return []

    @classmethod
    def suggested(cls, *, length: int, causal: bool) -> "Sequence[Layers]":
        """No settings: without healing, networks with fewer layers lose too much quality to be compared."""
        return []


def spread(count: int, keep: int) -> list[int]:
    """Numbers of the layers to keep of `count`: evenly spread, with the first, and with the last if two are kept."""
    return [round(place * (count - 1) / max(1, keep - 1)) for place in range(keep)]


def _is_places(given: object) -> bool:
    return isinstance(given, list) and all(type(place) is int and place >= 0 for place in given)
