"""Int8 weights with one scale for each row; inputs are rounded at every call. Jacob 2017, arXiv:1712.05877.

The change covers linear layers, experts, low-rank ones too, and embeddings of any network; the arithmetic is that of
`greenformers.changes._int8_linear`.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from greenformers.changes._contract import Change, Given
from greenformers.changes._report import Report, UnitReport

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Int8(Change):
    """Int8 weights of linear layers, experts and embeddings: a quarter of the bytes, products in integers."""

    order: ClassVar[int] = 90
    flag: ClassVar[str | None] = "--int8"
    freezes: ClassVar[bool] = True
    reads_weights: ClassVar[bool] = True
    codes: ClassVar[bool] = True
    by_block: ClassVar[bool] = True

    def apply(self, model: "nn.Module", given: Given) -> Report:
        """Quantise all weights that have an int8 form; no parameter is trainable afterwards.

        Raises:
            ValueError: There is nothing to quantise, or a weight is not finite.
        """
        from greenformers.changes._coverage import coverage
        from greenformers.changes._int8 import quantise
        from greenformers.changes._options import as_dict
        from greenformers.solve.census import census

        held = census(model)
        replaced = quantise(model)
        units = [_unit(path, before, after) for path, before, after in replaced]
        # Of weights that are tied there is one.
        once = {id(module.quantised): unit for unit, (_, _, module) in zip(units, replaced, strict=True)}.values()
        before, after = (sum(getattr(unit, name) for unit in once) for name in ("before", "after"))
        summary = (
            f"{len(once)} layers and embeddings, {before / 2**20:.1f} MiB -> {after / 2**20:.1f} MiB; they are "
            f"{coverage(held, [unit.path for unit in units])}"
        )
        return Report(as_dict(self), summary, units)

    def in_block(self, part: "nn.Module") -> Self | None:
        """The same change, where there is something to quantise."""
        from greenformers.changes._int8 import targets
        from greenformers.model.experts import as_modules

        with as_modules(part):
            return self if targets(part) else None

    @classmethod
    def describe(cls, model: "nn.Module") -> Any:
        """The paths of int8 modules, and groups of paths that share their numbers."""
        from greenformers.changes._int8 import groups_of, int8_of

        paths = int8_of(model)
        return {"paths": paths, "ties": groups_of(model)} if paths else None

    @classmethod
    def place(cls, model: "nn.Module", description: Any) -> list[str]:
        """Put empty int8 modules at the paths of a description."""
        from greenformers.changes._int8 import place, share
        from greenformers.changes._paths import check_keys, check_paths, located
        from greenformers.model.experts import pack, unpack

        check_keys("the description of int8", description, ("paths", "ties"))
        check_paths("paths of int8", description["paths"])
        if not isinstance(description["ties"], list):
            raise ValueError("ties of int8 must be lists of paths")
        unpacked = unpack(model)
        at = located(model, description["paths"])
        place(model, at.values())
        pack(model, unpacked)
        for group in description["ties"]:
            check_paths("ties of int8", group)
            members: list[Any] = [model.get_submodule(at[path]) for path in group if path in at]
            for member in members[1:]:
                share(member, members[0])
        return [path for path in description["paths"] if path not in at]

    @classmethod
    def replaced(cls, model: "nn.Module") -> Iterable[str]:
        """Paths of the int8 modules."""
        from greenformers.changes._int8 import int8_of

        return int8_of(model)

    @classmethod
    def ties(cls, model: "nn.Module") -> Iterable[tuple[str, str]]:
        """Numbers and scales that modules share."""
        from greenformers.changes._int8 import shared

        return shared(model)

    @classmethod
    def settle(cls, model: "nn.Module") -> None:
        """Freeze all parameters of the network."""
        model.requires_grad_(False)

    @classmethod
    def revert(cls, model: "nn.Module") -> int:
        """Raise: rounded weights cannot be restored.

        Raises:
            ValueError: Always.
        """
        raise ValueError("int8 weights cannot become dense again: merge the network before it is quantised")

    @classmethod
    def searched(cls, model: "nn.Module", *, length: int, causal: bool, heals: bool) -> "Sequence[Int8]":
        """Its one setting."""
        return [cls()]

    def rounding(self, model: "nn.Module", *, share: float = 1.0) -> AbstractContextManager[None]:
        """A `with` block for training in which weights, or a share of them, and inputs are rounded as int8 does."""
        from greenformers.changes._int8 import aware

        return aware(model, share)

    @classmethod
    def jittered(cls, model: "nn.Module", seed: int) -> AbstractContextManager[None]:
        """A `with` block with inputs off by their last digits, so that values on the edge are rounded the other way."""
        from greenformers.changes._int8 import jittered

        return jittered(model, seed)


def _unit(path: str, before: Any, after: Any) -> UnitReport:
    was, now = (sum(x.numel() * x.element_size() for x in _numbers(module)) for module in (before, after))
    return UnitReport(path, "int8", was, now, None, _lost(before, after))


def _numbers(module: "nn.Module") -> "Sequence[Tensor]":
    return [parameter for name, parameter in module.named_parameters() if name != "bias"]


def _lost(before: Any, after: Any) -> float:
    """|W - s q| / |W|."""
    from greenformers.changes._int8 import turned

    weight, quantised = before.weight.detach().double(), after.weight.double()
    # An int8 linear layer gives its weight as (m, n) whatever stood there.
    rows = weight.T if turned(before) and weight.dim() == 2 else weight
    total = rows.norm()
    return float((rows - quantised).norm() / total) if total > 0 else 0.0
