"""Sparse upcycling: feed-forward layers of a trained network become experts, each a copy. Komatsuzaki 2022.

arXiv:2212.05055. y = sum over the k experts of the largest p_e of g_e FFN_e(x), p = softmax(W_r x), and g sums to 1:
all experts are FFN at first, and so the network computes what it did, whatever the router chooses. With k = 1 the gate
is p / p.detach(), as the plain gate p would shrink y to about 1 / E. Nothing is dropped.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from greenformers.changes._contract import Change, Given, Need, option
from greenformers.changes._report import Report, UnitReport

if TYPE_CHECKING:
    from torch import nn

    from greenformers.changes._upcycled import Layer


@dataclass(frozen=True)
class Upcycle(Change):
    """Experts in place of feed-forward layers, copies of them at first: more weights to learn with.

    The loss that balances experts is added by our models alone; classes of transformers know of none.
    """

    experts: int = option(8, "Number of experts of a layer.", "--upcycle")
    k: int = option(2, "Number of experts that a position goes through.", "--upcycle-k")
    every: int = option(2, "Experts in one layer of so many, counted from the last; 1: in all.", "--upcycle-every")

    order: ClassVar[int] = 20
    reads_weights: ClassVar[bool] = True
    reads_dense: ClassVar[bool] = True
    factorises: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.experts < 1:
            raise ValueError(f"experts must be at least 1, got {self.experts}")
        if not 1 <= self.k <= self.experts:
            raise ValueError(f"k must be in 1..{self.experts}, got {self.k}")
        if self.every < 1:
            raise ValueError(f"every must be at least 1, got {self.every}")

    @property
    def label(self) -> str:
        """The number of experts, as in "upcycle 8"."""
        return f"upcycle {self.experts}"

    @property
    def needs(self) -> frozenset[Need]:
        """A batch by which feed-forward layers are found."""
        return frozenset({"example"})

    def check(self, model: "nn.Module", before: Sequence[type[Change]], given: Given) -> None:
        """Check also that there are feed-forward layers."""
        from transformers import PreTrainedModel

        if not isinstance(model, PreTrainedModel):
            raise ValueError(f"{type(model).__name__} is not a model of transformers, whose layers become experts")
        super().check(model, before, given)
        self._chosen(model, given)

    def _chosen(self, model: "nn.Module", given: Given) -> "list[Layer]":
        from greenformers.changes._upcycled import layers

        return layers(model, given.batch)[:: -self.every][::-1]

    def apply(self, model: "nn.Module", given: Given) -> Report:
        """Put experts in place of feed-forward layers.

        Raises:
            ValueError: There are no feed-forward layers, they stand in blocks, which return no loss, or the network
                computes something else with experts: something else reads the neurons of a layer.
        """
        import torch

        from greenformers.changes._options import as_dict
        from greenformers.changes._upcycled import copy_experts, note, put_experts
        from greenformers.solve.unchanged import outputs
        from greenformers.solve.units import put

        chosen, example = self._chosen(model, given), given.batch
        expected = outputs(model, example)
        draw = torch.Generator().manual_seed(given.seed)
        before = {path: model.get_submodule(path) for layer in chosen for path in (*layer.first, layer.path)}
        try:
            for layer in chosen:
                put_experts(model, layer, self.experts, self.k)
                copy_experts(model, layer, before, draw)
            _check(model, expected, outputs(model, example))
        except BaseException:
            for path, module in before.items():
                put(model, path, module)
            raise
        note(model, chosen)
        units = [
            UnitReport(path, f"{self.experts} experts", _bytes(module), _bytes(model.get_submodule(path)), 0.0, 0.0)
            for path, module in before.items()
        ]
        summary = (
            f"{len(chosen)} feed-forward layers are {self.experts} experts each, of which {self.k} read a position"
        )
        return Report(as_dict(self), summary, units)

    @classmethod
    def describe(cls, model: "nn.Module") -> Any:
        """Number of experts and k of each mixture, by path."""
        from greenformers.changes._upcycled import described

        return described(model) or None

    @classmethod
    def place(cls, model: "nn.Module", description: Any) -> list[str]:
        """Put empty experts at the paths of a description."""
        from greenformers.changes._upcycled import placed

        return placed(model, description)

    @classmethod
    def replaced(cls, model: "nn.Module") -> Iterable[str]:
        """Paths of the experts."""
        from greenformers.changes._upcycled import paths_of

        return paths_of(model)


def _check(model: "nn.Module", expected: Any, now: Any) -> None:
    """Raise ValueError where outputs are not what they were."""
    from greenformers.solve.coupled import exact

    far = [(a - b).abs().max() > exact(model) * a.abs().max() for a, b in zip(expected, now, strict=True) if a.numel()]
    if any(far):
        raise ValueError(
            f"{type(model).__name__} does not compute the same with experts: it reads its neurons elsewhere"
        )


def _bytes(module: "nn.Module") -> int:
    return sum(x.numel() * x.element_size() for x in module.parameters())
