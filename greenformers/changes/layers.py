"""Fewer layers: a student with some layers of its teacher, to be healed. Sanh 2019, arXiv:1910.01108 (DistilBERT).

Which ones, by their places or by what they do to texts, is told by `greenformers.solve.which_layers`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from greenformers.changes._contract import Change, Given, Need, option
from greenformers.changes._report import Report, UnitReport

if TYPE_CHECKING:
    from torch import nn

LEFT = "_layers_left"

BY_PLACE, BY_TEXTS = ("even", "top", "bottom", "symmetric", "alternate"), ("influence", "run", "loss")
"""The ways to choose layers, see `greenformers.solve.which_layers`: by their places alone, and with texts."""


@dataclass(frozen=True)
class Layers(Change):
    """Fewer layers: evenly spread ones, or others."""

    keep: int | None = option(None, "Number of layers to keep; by default half of them.", "--keep-layers")
    by: str = option(
        "even",
        "How they are chosen. By place: even (spread), or without those at the top, at the bottom, in the middle "
        "(symmetric) or alternate ones; with texts: influence (without those that change hidden states least), run "
        "(without the run that does), loss (without those whose absence costs least).",
        "--layers-by",
    )

    order: ClassVar[int] = 3
    built_by_the_class: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.keep is not None and self.keep < 1:
            raise ValueError(f"layers to keep must be at least 1, got {self.keep}")
        if self.by not in (*BY_PLACE, *BY_TEXTS):
            raise ValueError(f"layers by must be of {', '.join((*BY_PLACE, *BY_TEXTS))}; got {self.by!r}")

    @property
    def needs(self) -> frozenset[Need]:
        """Examples to calibrate with, where the choice depends on them."""
        return frozenset({"calibration"}) if self.by in BY_TEXTS else frozenset()

    @property
    def label(self) -> str:
        """The number of layers, as in "3 layers" or "3 layers by loss"."""
        count = "half the layers" if self.keep is None else f"{self.keep} layer{'s' * (self.keep > 1)}"
        return count if self.by == "even" else f"{count} by {self.by}"

    def check(self, model: "nn.Module", before: Sequence[type[Change]], given: Given) -> None:
        """Check also that a stack has more layers than are to be kept, and that the configuration can count fewer."""
        from greenformers.changes._stacks import check_shorter

        super().check(model, before, given)
        network: Any = model
        # Layers of one class are alike in shape: any choice of as many is as good here.
        by_place = self if self.by in BY_PLACE else Layers(self.keep)
        check_shorter(network, {path: by_place._placed(*sizes) for path, sizes in self._sizes(model).items()})

    def _sizes(self, model: "nn.Module") -> dict[str, tuple[int, int]]:
        """Numbers of layers and of those to keep, for each stack that has more than that."""
        from greenformers.changes._stacks import stacks

        counts = {path: len(stack) for path, stack in stacks(model).items()}
        sizes = {path: (count, count // 2 if self.keep is None else self.keep) for path, count in counts.items()}
        longer = {path: (count, keep) for path, (count, keep) in sizes.items() if keep < count}
        if not longer:
            most = max(counts.values())
            if most < 2:
                raise ValueError("the network has one layer only: none can go")
            raise ValueError(f"layers to keep must be in 1..{most - 1}, of {most}; got {self.keep}")
        return longer

    def _placed(self, count: int, keep: int) -> list[int]:
        from greenformers.solve import which_layers

        return which_layers.BY_PLACE[self.by](count, keep)

    def _remaining(self, model: "nn.Module", given: Given) -> dict[str, list[int]]:
        """Numbers of the layers that remain, for each stack with more than that."""
        if self.by in BY_PLACE:  # which takes no time, and would push out what does
            return self._choose(model, given)
        return given.once(self.label, lambda: self._choose(model, given))

    def _choose(self, model: "nn.Module", given: Given) -> dict[str, list[int]]:
        from greenformers.solve import which_layers

        sizes = self._sizes(model)
        if self.by in BY_PLACE:
            return {path: self._placed(*size) for path, size in sizes.items()}
        more = {"loss": given.loss} if self.by == "loss" else {}
        remaining = {}
        for number, (path, (count, keep)) in enumerate(sizes.items()):

            def progress(share: float, number: int = number) -> None:
                given.progress("choosing layers", (number + share) / len(sizes))

            paths = [f"{path}.{place}" for place in range(count)]
            choose = which_layers.BY_TEXTS[self.by]
            remaining[path] = choose(model, paths, keep, given.calibration, progress, **more)
        return remaining

    def apply(self, model: "nn.Module", given: Given) -> Report:
        """Drop layers of the network's stacks; in an encoder-decoder of both.

        Raises:
            ValueError: No stack has more layers than are to be kept, or the configuration cannot count fewer.
        """
        from greenformers.changes._options import as_dict
        from greenformers.changes._stacks import check_shorter, shorten

        network: Any = model
        remaining = self._remaining(model, given)
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
    def searched(cls, model: "nn.Module", *, length: int, causal: bool, heals: bool) -> "Sequence[Layers]":
        """One layer less, and so on down to a third of them.

        Those that change hidden states least are left out. Where an encoder will be healed, the others are evenly
        spread: MiniLM-L6 with 4 layers keeps less so before it is healed, and more behind it (docs/studies/search.md).
        """
        from greenformers.changes._stacks import stacks

        try:
            most = max(map(len, stacks(model).values()))
        except ValueError:  # there is no stack of which some could be left out
            return []
        by = "even" if heals and not causal else "influence"
        return [cls(keep, by=by) for keep in range(most - 1, max(1, most // 3) - 1, -1)]

    def products_left(self, model: "nn.Module") -> float:
        """The share of the layers that is kept."""
        from greenformers.changes._stacks import stacks

        every, shorter = stacks(model), self._sizes(model)
        remaining = [shorter[path][1] if path in shorter else len(stack) for path, stack in every.items()]
        return sum(remaining) / sum(map(len, every.values()))


def _is_places(given: object) -> bool:
    return isinstance(given, list) and all(type(place) is int and place >= 0 for place in given)
