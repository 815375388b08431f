"""Weights of 1 to 8 bits: rounded, by second order (GPTQ, Frantar 2023, arXiv:2210.17323), or with scaled inputs (AWQ,
Lin 2023, arXiv:2306.00978). The grids are those of the survey's eq. 13, see `greenformers.solve.grid`.
"""  # noqa: D205

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

from greenformers.changes._coding import Coding
from greenformers.changes._contract import Given, option

if TYPE_CHECKING:
    from torch import Tensor, nn

    from greenformers.changes._bits_layers import Packed
    from greenformers.changes._coded import CodedWeight, Layer
    from greenformers.changes._contract import Change
    from greenformers.solve.grid import Form, Grid
    from greenformers.solve.layer_by_layer import Inputs
    from greenformers.solve.walk import Site
    from greenformers.solve.watch import Trace

BY = ("gptq", "awq", "rounding")


@dataclass(frozen=True)
class Bits(Coding):
    """Weights of linear layers, embeddings and experts in few bits, packed: fewer bytes, and text is written faster."""

    bits: float | None = option(
        None, "Bits of a weight: 2 to 8, 1.58 for ternary weights (-a, 0, a), 1 for binary ones (-a, a); by default 4.",
        "--bits",
    )  # fmt: skip
    budget: float | None = option(
        None,
        "In place of bits: the mean, with all that is stored beside them; each weight gets its own bits, and a product "
        "of two narrow weights where that loses less.",
        "--bits-budget",
    )
    by: str = option(
        "gptq",
        "How weights are rounded. With texts: gptq, where later weights make up for earlier ones, or awq, with scales "
        "of the inputs; by weights alone: rounding. Embeddings and experts are always rounded by weights alone.",
        "--bits-by",
    )
    per: str = option("group", "What has a step of its own: group (of inputs of a row), row, or tensor.", "--bits-per")
    group: int | None = option(None, "Inputs of a group; by default 64.", "--bits-group")
    symmetric: bool = option(False, "Grids that are the same on both sides of 0.")
    act_order: bool | None = option(
        None, "Let gptq round inputs by falling size, the default, and not from left to right."
    )
    clip: bool | None = option(
        None, "Take the range of a grid narrower where that loses less; by default gptq and awq do, and rounding not."
    )
    rank: int | None = option(
        None,
        "Rank of a product of two narrow weights, in 8 bits, that is added to each rounded one (LQER); by gptq.",
        "--bits-rank",
    )
    inputs: int | None = option(
        None,
        "Bits that linear layers round their inputs to at every call, as int8 does: 8; by default they do not. "
        "Products are then in integers; for weights of up to 7 bits with one step a row.",
        "--bits-inputs",
    )
    select: tuple[str, ...] | None = option(
        None, "Layers to round: patterns of paths such as '*.query'; by default all linear layers and embeddings."
    )

    order: ClassVar[int] = 85
    freezes: ClassVar[bool] = True

    def check_order(self, before: "Sequence[type[Change]]") -> None:
        """Check also that zeros stay: what makes up for the rounding of other weights, and a single bit, have none."""
        super().check_order(before)
        sparsifying = next((kind for kind in before if kind.sparsifies), None)
        if sparsifying is not None and (self.by not in ("rounding", "awq") or self.rank or (self.bits or 4) < 1.5):
            raise ValueError(
                f"bits by {self.by} cannot follow {sparsifying.name()}, whose zeros it would fill: set by to "
                "rounding or awq, with 1.58 bits at least and no rank"
            )

    def __post_init__(self) -> None:
        from greenformers.solve.grid import BITS, PER

        if self.bits is not None and self.bits not in BITS:
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
        if self.symmetric and self.number < 2:
            raise ValueError(f"grids of {self.number:g} bits are symmetric as they are")
        if self.clip is not None and self.number < 2:
            raise ValueError(f"grids of {self.number:g} bits have no range that could be narrower: leave clip out")
        if self.budget is not None and self.bits is not None:
            raise ValueError(f"budget and bits exclude each other, got {self.budget:g} and {self.bits:g}")
        if self.budget is not None and not 1 < self.budget < 9:
            raise ValueError(f"budget must be a number of bits a weight in (1, 9), got {self.budget:g}")
        for name in ("budget", "rank"):
            if getattr(self, name) is not None and self.by != "gptq":
                raise ValueError(f"bits {name} is of gptq, not of {self.by}")
        if self.rank is not None and self.rank < 1:
            raise ValueError(f"bits rank must be at least 1, got {self.rank}")
        if self.inputs is not None:
            self._check_inputs()
        if self.rank is not None and self.budget is not None:
            raise ValueError("budget chooses ranks by itself: leave rank out")

    def _check_inputs(self) -> None:
        if self.inputs != 8:
            raise ValueError(f"inputs can be rounded to 8 bits, got {self.inputs}")
        if self.per == "group":
            raise ValueError("products in integers need one step for all inputs of a row: bits per row or tensor")
        if self.budget is not None or self.number > 7:
            given = "a budget" if self.budget is not None else f"{self.number:g} bits"
            raise ValueError(f"inputs are rounded beside weights of up to 7 bits, got {given}; int8 has 8")

    @property
    def label(self) -> str:
        """The bits and the way, as in "4 bits" or "4 bits by rounding"."""
        if self.budget is not None:
            return f"{self.budget:g} bits in the mean"
        how = ("" if self.by == "gptq" else f" by {self.by}") + ("" if self.inputs is None else ", int8 inputs")
        return f"{self.number:g} bits{how}" + (f", rank {self.rank}" if self.rank else "")

    @property
    def number(self) -> float:
        """The bits of a weight."""
        return 4 if self.bits is None else self.bits

    @property
    def form(self) -> "Form":
        """The form of the grids."""
        from greenformers.solve.grid import Form

        bits = int(self.number) if float(self.number).is_integer() else self.number
        return Form(bits, self.per, 64 if self.group is None else self.group, self.symmetric or bits < 2)

    @property
    def clips(self) -> bool:
        """Whether narrower ranges are tried."""
        return self.by != "rounding" if self.clip is None else self.clip

    @property
    def speed(self) -> str:
        """What the report says of speed: of at most 4 bits weights stay packed where few rows are read."""
        if self.inputs is not None:
            return "products in integers, as those of int8 layers"
        few = 4 if self.budget is not None else self.number
        return super().speed + ("" if few > 4 else ", but of up to 64 rows, as in writing text token by token")

    @property
    def patterns(self) -> tuple[str, ...] | None:
        """Patterns of the paths of weights that are rounded."""
        return self.select

    @property
    def looks(self) -> bool:
        """Whether it looks at inputs: all ways but the nearest numbers do."""
        return self.by != "rounding"

    @property
    def shares(self) -> bool:
        """Whether it looks at inputs; what is judged for a budget is no sum."""
        return super().shares and self.budget is None

    def alone(self, site: "Site", given: Given) -> "tuple[CodedWeight, float]":
        """The code of a weight by itself, of the whole range where it is the head too, and the relative error.

        What is least in the mean square cuts off its largest numbers, of which logits are made: of a Llama of 10
        million parameters 4 bits then cost 0.58 of perplexity, and 0.46 without.
        """
        return Coding.alone(self if self.number < 2 else replace(self, clip=self._clips(site)), site, given)

    def _clips(self, site: "Site") -> bool:
        return self.clips and (self.clip is not None or not site.also_head)

    def by_weights(self, W: "Tensor", given: Given) -> "Packed":
        """A weight rounded to the nearest numbers."""
        from greenformers.solve.grid import Grid

        grid = Grid.of(W, self.form, felt=W.new_ones(W.shape[1]) if self.clips else None)
        return self._packed(grid.round(W), grid)

    def by_inputs(self, W: "Tensor", inputs: "Inputs", given: Given) -> "Packed":
        """A weight rounded by GPTQ or AWQ."""
        from greenformers.changes._bits_layers import Packed
        from greenformers.solve.awq import awq
        from greenformers.solve.low_rank_rest import corrected

        if self.rank:
            parts = corrected(W, inputs.C, min(self.rank, *W.shape), partial(self._by_gptq, inputs))
            weight, left, right = (Packed.of(*part) for part in parts)
            weight.rounds_inputs = self.inputs is not None
            return weight.with_product(left, right)
        if self.by == "awq":
            return self._packed(*awq(W, inputs.C, inputs.size, self.form, clip=self.clips))
        return self._packed(*self._by_gptq(inputs, W))

    def _packed(self, q: "Tensor", grid: "Grid", scales: "Tensor | None" = None) -> "Packed":
        from greenformers.changes._bits_layers import Packed

        held = Packed.of(q, grid, scales)
        held.rounds_inputs = self.inputs is not None
        return held

    def _by_gptq(self, inputs: "Inputs", W: "Tensor") -> "tuple[Tensor, Grid]":
        from greenformers.solve.gptq import gptq

        return gptq(W, inputs.C, self.form, act_order=self.act_order is not False, clip=self.clips)

    def plan(
        self, model: "nn.Module", sites: "Sequence[Site]", traced: "Trace | None", given: Given
    ) -> "dict[str, Coding]":
        """With a budget, the bits and the rank of each weight for which least is lost in all."""
        if self.budget is None:
            return super().plan(model, sites, traced, given)
        from greenformers.lowrank.rank import spend
        from greenformers.solve.bit_points import bit_points

        assert given.calibration is not None
        points = bit_points(
            model, sites, traced, given.calibration, lambda bits: self._held(bits).form,
            lambda site, way: _bytes(site, self._held(way.bits).form, way.rank), clip=self._clips, loss=given.loss,
            memory=given.memory, progress=lambda share: given.progress("looking", share),
        )  # fmt: skip
        weights = sum(site.dense for site in sites)
        least = 8 * sum(min(point.cost for point in ways) for ways in points.values()) / weights
        if least > self.budget:
            raise ValueError(f"a budget of {self.budget:g} bits a weight is below {least:.2f}, the least that there is")
        chosen = spend(list(points.values()), self.budget * weights / 8)
        return {
            path: replace(self._held(point.choice.bits), rank=point.choice.rank or None)
            for path, point in zip(points, chosen, strict=True)
        }

    def in_block(self, part: "nn.Module") -> Self | None:
        """The same change.

        Raises:
            ValueError: Bits are to be spent where they are felt most in all of the network.
        """
        if self.budget is not None:
            raise ValueError("a budget of bits looks at all layers at once: block by block, from disk, name the bits")
        return super().in_block(part)

    @property
    def copies(self) -> int:
        """A weight in float32, as it was and rounded, and its numbers: GPTQ rounds some rows at a time."""
        return 14 if self.by == "gptq" and not self.rank else super().copies

    def _held(self, bits: int) -> "Bits":
        return replace(self, bits=bits, budget=None)

    @classmethod
    def weights(cls) -> "type[Packed]":
        """The class of packed weights."""
        from greenformers.changes._bits_layers import Packed

        return Packed

    @classmethod
    def empty(cls, path: str, m: int, n: int, described: Any) -> "Packed":
        """A packed weight without numbers."""
        from greenformers.changes._bits_layers import checked

        return checked(path, m, n, described)

    @classmethod
    def layer(cls, module: Any, held: Any) -> "Layer":
        """The layer with a packed weight in place of a linear layer, an embedding or experts."""
        from torch import nn

        from greenformers.changes._bits_layers import BitsExperts, BitsLinear
        from greenformers.changes._coded import CodedEmbedding
        from greenformers.lowrank.experts import ExpertsLinear

        if isinstance(module, nn.Embedding):
            return CodedEmbedding(held, module.padding_idx)
        if isinstance(module, ExpertsLinear):
            return BitsExperts(held, module)
        return BitsLinear(held, module.bias)

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
        from greenformers.changes._bits_aware import aware

        if self.symmetric and self.number >= 2 and self.by != "rounding":
            raise ValueError(
                f"symmetric grids that were healed with aware are rounded by rounding: {self.by} would undo what was "
                'learned (by="rounding")'
            )
        # On a budget weights are to have other bits than in training.
        stays = self.budget is None
        return aware(model, self.select, self.form, share, inputs=self.inputs is not None, stays=stays)

    @classmethod
    def jittered(cls, model: "nn.Module", seed: int) -> AbstractContextManager[None] | None:
        """A `with` block with inputs off by their last digits, where layers round them."""
        from greenformers.changes._bits_layers import rounding_inputs
        from greenformers.changes._int8_linear import off_by_last_digits

        layers = rounding_inputs(model)
        return off_by_last_digits(layers, seed) if layers else None


def _bytes(site: "Site", form: "Form", rank: int) -> int:
    import torch

    from greenformers.changes._bits_layers import Packed

    with torch.device("meta"):
        held = Packed(site.rows, site.n, form, rank=rank)
    return sum(part.numel() * part.element_size() for part in held.parameters())
