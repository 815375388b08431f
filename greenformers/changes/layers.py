"""Fewer layers: a student made of some of its teacher's, to be healed. Sanh 2019, arXiv:1910.01108 (DistilBERT)."""

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

    keep: int | None = option(None, "How many layers to keep; half of them if not given.", "--keep-layers")

    order: ClassVar[int] = 20
    built_by_the_class: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.keep is not None and self.keep < 1:
            raise ValueError(f"layers to keep must be at least 1, got {self.keep}")

    @property
    def label(self) -> str:
        """Such as "3 layers"."""
        return "half the layers" if self.keep is None else f"{self.keep} layers"

    def check(self, model: "nn.Module", before: Sequence[type[Change]], given: Given) -> None:
        """See besides that there are stacks of more layers than are to be kept, and what the model is without them."""
        from greenformers.changes._stacks import check_shorter

        super().check(model, before, given)
        network: Any = model
        check_shorter(network, self._kept(model))

    def _kept(self, model: "nn.Module") -> dict[str, list[int]]:
        """Which layers of each stack are kept, of those that are longer."""
        from greenformers.changes._stacks import stacks

        counts = {path: len(stack) for path, stack in stacks(model).items()}
        keep = {path: count // 2 if self.keep is None else self.keep for path, count in counts.items()}
        kept = {path: spread(count, keep[path]) for path, count in counts.items() if keep[path] < count}
        if not kept:
            most = max(counts.values())
            raise ValueError(f"layers to keep must be in 1..{most - 1}, of {most}; got {self.keep}")
        return kept

    def apply(self, model: "nn.Module", given: Given) -> Report:
        """Drop layers of the network's stacks; of an encoder-decoder of both.

        Raises:
            ValueError: there is no stack of so many layers, or its configuration cannot count fewer.
        """
        from greenformers.changes._options import as_dict
        from greenformers.changes._stacks import check_shorter, shorten

        network: Any = model
        kept = self._kept(model)
        check_shorter(network, kept)
        left = getattr(model, LEFT, {})
        units = []
        for path, places in kept.items():
            stack: Any = model.get_submodule(path)
            before = left.get(path, list(range(len(stack))))
            left = left | {path: [before[place] for place in places]}
            for place, layer in enumerate(stack):
                size = sum(x.numel() * x.element_size() for x in layer.parameters())
                state = ("kept", size, size) if place in places else ("dropped", size, 0)
                units.append(UnitReport(f"{path}.{place}", *state))
        counts = {path: len(network.get_submodule(path)) for path in kept}
        shorten(network, kept)
        setattr(model, LEFT, left)
        said = [f"{', '.join(map(str, kept[path]))} of {count}" for path, count in counts.items()]
        names = [f" of {path}" if len(kept) > 1 else "" for path in kept]
        summary = "; ".join(f"layers {what}{name} are left" for what, name in zip(said, names, strict=True))
        return Report(as_dict(self), summary, units)

    @classmethod
    def describe(cls, model: "nn.Module") -> Any:
        """Which of the original's layers are left, by the path of the stack."""
        return getattr(model, LEFT, None)

    @classmethod
    def place(cls, model: "nn.Module", description: Any) -> list[str]:
        """Note which layers they were: how many there are the configuration says."""
        if not isinstance(description, dict) or not description or not all(map(_is_places, description.values())):
            raise ValueError(
                "the layers that are left must be lists of whole numbers from 0 on, by the path of their stack"
            )
        setattr(model, LEFT, {str(path): list(places) for path, places in description.items()})
        return []

    @classmethod
    def suggested(cls, *, length: int, causal: bool) -> "Sequence[Layers]":
        """None: without healing no share of the layers keeps what texts could judge."""
        return []


def spread(count: int, keep: int) -> list[int]:
    """Which of `count` layers to keep: evenly spread, the first one always, and the last one where there are two."""
    return [round(place * (count - 1) / max(1, keep - 1)) for place in range(keep)]


def _is_places(given: object) -> bool:
    return isinstance(given, list) and all(type(place) is int and place >= 0 for place in given)
