"""Weights of 1 to 8 bits: rounded, by second order (GPTQ, Frantar 2023, arXiv:2210.17323), or with scaled inputs (AWQ,
Lin 2023, arXiv:2306.00978). The grids are those of the survey's eq. 13, see `greenformers.solve.grid`.
"""  # noqa: D205

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from greenformers.changes._contract import Change, Given, Need, Report, UnitReport, option

if TYPE_CHECKING:
    from torch import nn

    from greenformers.changes._bits_layers import Packed
    from greenformers.solve.grid import Form
    from greenformers.solve.walk import Site

BY = ("gptq", "awq", "rounding")


@dataclass(frozen=True)
class Bits(Change):
    """Weights of linear layers and embeddings in few bits, packed: fewer bytes; products are in floating point."""

    bits: float = option(
        4, "Bits of a weight: 2 to 8, 1.58 for ternary weights (-a, 0, a), 1 for binary ones (-a, a).", "--bits"
    )
    by: str = option(
        "gptq",
        "How weights are rounded. With texts: gptq, where later weights make up for earlier ones, or awq, with scales "
        "of the inputs; by weights alone: rounding. Embeddings are always rounded by weights alone.",
        "--bits-by",
    )
    per: str = option("group", "What has a step of its own: group (of inputs of a row), row, or tensor.", "--bits-per")
    group: int | None = option(None, "Inputs of a group; by default 64.", "--bits-group")
    symmetric: bool = option(False, "Grids that are the same on both sides of 0.")
    act_order: bool | None = option(
        None, "Let gptq round inputs by falling size, the default, and not from left to right."
    )
    select: tuple[str, ...] | None = option(
        None, "Layers to round: patterns of paths such as '*.query'; by default all linear layers and embeddings."
    )

    order: ClassVar[int] = 85
    freezes: ClassVar[bool] = True
    reads_weights: ClassVar[bool] = True

    def __post_init__(self) -> None:
        from greenformers.solve.grid import BITS, PER

        if self.bits not in BITS:
            raise ValueError(
                f"bits must be 1 (binary), 1.58 (ternary) or a whole number from 2 to 8, got {self.bits:g}"
            )
        if self.by not in BY:
            raise ValueError(f"bits by must be of {', '.join(BY)}; got {self.by!r}")
        if self.per not in PER:
            raise ValueError(f"bits per must be of {', '.join(PER)}; got {self.per!r}")
        if self.group is not None and self.per != "group":
            raise ValueError(f"bits per {self.per} have no group, got {self.group}")
        if self.group is not None and self.group < 1:
            raise ValueError(f"group must be at least 1, got {self.group}")
        if self.act_order is not None and self.by != "gptq":
            raise ValueError(f"act_order is of gptq, not of {self.by}")
        if self.symmetric and self.bits < 2:
            raise ValueError(f"grids of {self.bits:g} bits are symmetric as they are")

    @property
    def label(self) -> str:
        """The bits and the way, as in "4 bits" or "4 bits by rounding"."""
        return f"{self.bits:g} bits" + ("" if self.by == "gptq" else f" by {self.by}")

    @property
    def form(self) -> "Form":
        """The form of the grids."""
        from greenformers.solve.grid import Form

        bits = int(self.bits) if float(self.bits).is_integer() else self.bits
        return Form(bits, self.per, 64 if self.group is None else self.group, self.symmetric or bits < 2)

    @property
    def needs(self) -> frozenset[Need]:
        """Texts to calibrate with, for what looks at inputs."""
        return frozenset() if self.by == "rounding" else frozenset({"calibration"})

    def check(self, model: "nn.Module", before: Sequence[type[Change]], given: Given) -> None:
        """Check also that there are layers to round."""
        from greenformers.changes._bits import roundable

        super().check(model, before, given)
        if not any(change.factorises for change in before):  # which may leave other layers than there are now
            roundable(model, self.select)

    def apply(self, model: "nn.Module", given: Given) -> Report:
        """Round weights; no parameter is trainable afterwards.

        Raises:
            ValueError: There is nothing to round, the data does not reach a layer that is selected, or numbers are not
                finite.
        """
        from greenformers.changes import _bits
        from greenformers.changes._coverage import coverage
        from greenformers.changes._options import as_dict
        from greenformers.solve.census import census
        from greenformers.solve.watch import trace

        held = census(model)
        sites = _bits.roundable(model, self.select)
        packed: dict[str, Packed] = {}
        errors: dict[str, float] = {}
        if self.by != "rounding":
            assert given.calibration is not None
            looking = [site for site in sites if site.kind == "linear"]
            traced = trace(model, looking, given.calibration[0]) if looking else None
            if traced is not None and traced.unreached and self.select is not None:
                raise ValueError(
                    f"the data does not reach {traced.unreached[0].path!r}, which is selected: leave it out"
                )
            if traced is not None:
                packed, errors = _bits.by_inputs(
                    model, traced, given.calibration, self.by, self.form, act_order=self.act_order is not False,
                    memory=given.memory, progress=lambda share: given.progress("rounding", share),
                )  # fmt: skip
        for site in sites:
            if site.path not in packed:
                packed[site.path], errors[site.path] = _bits.by_weights(site, self.form)
        units = [_unit(site, packed[site.path], errors[site.path]) for site in sites]
        for site in sites:
            _bits.commit(model, site, packed[site.path])
        model.requires_grad_(False)
        before, after = (sum(getattr(unit, name) for unit in units) for name in ("before", "after"))
        paths = [path for site in sites for path in site.paths]
        total = sum(site.dense for site in sites)
        summary = (
            f"{len(units)} layers and embeddings, {before / 2**20:.1f} MiB -> {after / 2**20:.1f} MiB, "
            f"{8 * after / total:.2f} bits a weight with steps; no faster: products are in floating point; they are "
            f"{coverage(held, paths)}"
        )
        return Report(as_dict(self), summary, units)

    @classmethod
    def describe(cls, model: "nn.Module") -> Any:
        """The forms of packed weights by path, and groups of paths that share their numbers."""
        from greenformers.changes._bits import bits_layers, groups_of

        forms = {path: layer.held.described for path, layer in bits_layers(model)}
        return {"forms": forms, "ties": groups_of(model)} if forms else None

    @classmethod
    def place(cls, model: "nn.Module", description: Any) -> list[str]:
        """Put empty layers at the paths of a description."""
        from greenformers.changes._bits import place
        from greenformers.changes._paths import check_keys, check_paths

        check_keys("the description of bits", description, ("forms", "ties"))
        if not isinstance(description["forms"], dict) or not description["forms"]:
            raise ValueError("forms of bits must be objects by path")
        if not isinstance(description["ties"], list):
            raise ValueError("ties of bits must be lists of paths")
        for group in description["ties"]:
            check_paths("ties of bits", group)
        return place(model, description["forms"], description["ties"])

    @classmethod
    def replaced(cls, model: "nn.Module") -> Iterable[str]:
        """Paths of the layers with packed weights."""
        from greenformers.changes._bits import bits_layers

        return [path for path, _ in bits_layers(model)]

    @classmethod
    def ties(cls, model: "nn.Module") -> Iterable[tuple[str, str]]:
        """Numbers that layers share."""
        from greenformers.changes._bits import shared

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
        raise ValueError("weights of few bits cannot become dense again: merge the network before they are rounded")

    def rounding(self, model: "nn.Module", *, share: float = 1.0) -> AbstractContextManager[None]:
        """A `with` block for training in which weights, or a share of them, are rounded to the nearest numbers."""
        from greenformers.changes._bits import aware

        return aware(model, self.select, self.form, share)

    @classmethod
    def suggested(cls, *, length: int, causal: bool) -> "Sequence[Bits]":
        """No settings: the network is no faster."""
        return []


def _unit(site: "Site", held: "Packed", lost: float) -> UnitReport:
    weight: Any = site.module.weight
    after = sum(x.numel() * x.element_size() for x in held.parameters())
    return UnitReport(site.path, held.label, weight.numel() * weight.element_size(), after, None, lost)
