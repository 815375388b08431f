"""Weights in few bits, packed, with their grids, and linear layers and experts that have them.

A weight (m, n) is w = s (q - z), see `greenformers.solve.grid`. Numbers that are not floating point keep their bits
when a network is cast, so steps in float16 are held as int16.
"""

from dataclasses import asdict, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from greenformers._torch import is_fake, own_parameters
from greenformers.changes._bits_kernel import LEAST, ROWS, Kernel, group_for, kernel
from greenformers.changes._coded import CodedExperts, CodedLinear, CodedWeight
from greenformers.changes._frozen_product import frozen_product
from greenformers.changes._int8_linear import Int8Linear, fixed
from greenformers.changes._made_of import MadeOf
from greenformers.changes._paths import check_keys
from greenformers.changes._straight_through import rounded_inputs
from greenformers.lowrank.experts import ExpertsLinear
from greenformers.solve.bit_packing import pack, packed_width, unpack
from greenformers.solve.grid import BINARY, BITS, PER, Form, Grid
from greenformers.solve.low_rank_rest import FACTORS

INT8_BITS = 7
"""The most bits of weights beside which inputs are rounded: differences q - z are then int8 numbers."""


class Packed(CodedWeight):
    """A weight (m, n) in few bits.

    Args:
        m, n: Its size.
        form: The form of its grids.
        scaled: Whether inputs have scales of their own, by which columns were multiplied before they were rounded.
        rank: Rank of a product of two narrow weights, in 8 bits, that is added; 0 for none.
        rounds_inputs: Whether a linear layer rounds its inputs as an `Int8Linear` does.

    Attributes:
        unit: The number that steps are multiples of, (1,) float32, or of the type of the dense weight if that
            is half precision.
        steps: s / unit (m, G) or (1, 1), the bits of float16 as int16.
        zero: z, as many, uint8; None where grids are symmetric.
        packed: q, 8 numbers in N bytes, (m, bytes) uint8.
        inputs: Scales of the inputs (n,), of the type of unit; or None.
        left, right: L (m, rank) and R (rank, n), whose product is added; or None.
    """

    def __init__(
        self, m: int, n: int, form: Form, *, scaled: bool = False, rank: int = 0, rounds_inputs: bool = False
    ) -> None:
        super().__init__()
        self.m, self.n, self.form, self.rounds_inputs = m, n, form, rounds_inputs
        size = (1, 1) if form.per == "tensor" else (m, -(-n // form.group_of(n)))
        # First what is floating point: sentence-transformers takes a network's type from its first parameter.
        self.unit = fixed(torch.ones(1))
        self.steps = fixed(torch.ones(size, dtype=torch.float16).view(torch.int16))
        self.zero = None if form.symmetric else fixed(torch.zeros(size, dtype=torch.uint8))
        self.packed = fixed(torch.zeros(m, packed_width(n, form.bits), dtype=torch.uint8))
        self.inputs = fixed(torch.ones(n)) if scaled else None
        self.left = Packed(m, rank, FACTORS) if rank else None
        self.right = Packed(rank, n, FACTORS) if rank else None

    @classmethod
    def of(cls, q: Int[Tensor, "m n"], grid: Grid, inputs: Float[Tensor, "n"] | None = None) -> "Packed":
        """A weight of numbers q, their grids, and scales of inputs."""
        m, n = q.shape
        held = cls(m, n, grid.form, scaled=inputs is not None)
        held.unit = fixed(grid.unit.reshape(1))
        held.steps = fixed(grid.steps.view(torch.int16))
        if grid.zero is not None:
            held.zero = fixed(grid.zero)
        held.packed = fixed(pack(q, grid.form.bits))
        if inputs is not None:
            held.inputs = fixed(inputs.float())
        return held

    def part(self, rows: slice) -> "Packed":
        """Some rows, of the same memory."""
        with torch.device("meta"):  # all its numbers are those of slices
            part = Packed(rows.stop - rows.start, self.n, self.form, rounds_inputs=self.rounds_inputs)
        part.unit, part.inputs, part.packed = self.unit, self.inputs, fixed(self.packed.detach()[rows])
        shared = self.form.per == "tensor"
        part.steps = self.steps if shared else fixed(self.steps.detach()[rows])
        if self.zero is not None:
            part.zero = self.zero if shared else fixed(self.zero.detach()[rows])
        return part

    def with_product(self, left: "Packed", right: "Packed") -> "Packed":
        """The same weight and the product of two narrow ones."""
        self.left, self.right = left, right
        return self

    @property
    def like(self) -> Tensor:
        """A tensor of the type that the weight has among other weights."""
        return self.unit

    @property
    def described(self) -> dict[str, Any]:
        """What must be known to place an empty one: its form."""
        rank = 0 if self.left is None else self.left.n
        scaled = self.inputs is not None
        return {**asdict(self.form), "scaled": scaled, "rank": rank, "rounds_inputs": self.rounds_inputs}

    @property
    def more_numbers(self) -> int:
        """How many numbers there are beyond the bytes that hold them, see `greenformers.measure.parameters`."""
        return self.m * self.n - self.packed.numel()

    @property
    def label(self) -> str:
        """The form, as in "4 bits, groups of 64"."""
        per = f"groups of {self.form.group}" if self.form.per == "group" else f"by {self.form.per}"
        added = "" if self.left is None else f", and rank {self.left.n}"
        return f"{self.form.bits:g} bits, {per}{added}" + (", int8 inputs" if self.rounds_inputs else "")

    def rows(self, at: Int[Tensor, "..."] | None = None) -> Float[Tensor, "... n"]:
        """Rows of the weight, float32; by default all."""
        rows = self.numbers(at)
        if self.left is None or self.right is None:
            return rows
        return rows + self.left.rows(at) @ self.right.rows()

    def numbers(self, at: Int[Tensor, "..."] | None = None) -> Float[Tensor, "... n"]:
        """Rows without the product that is added."""
        packed: Tensor = self.packed
        grid = self.grid
        if at is not None:
            packed = packed[at.flatten()]
            if self.form.per != "tensor":
                steps, zero = grid.steps[at.flatten()], None if grid.zero is None else grid.zero[at.flatten()]
                grid = replace(grid, steps=steps, zero=zero)
        values = grid.values(unpack(packed, self.form.bits, self.n))
        values = values if self.inputs is None else values / self.inputs.float()
        return values if at is None else values.view(*at.shape, self.n)

    @property
    def grid(self) -> Grid:
        """The grids."""
        return Grid(self.form, self.unit.float(), self.steps.view(torch.float16), self.zero)

    def q(self) -> Int[Tensor, "m n"]:
        """The numbers."""
        return unpack(self.packed, self.form.bits, self.n)

    def int8(self) -> tuple[Int[Tensor, "m n"], Float[Tensor, "m"]]:
        """Of a step a row, int8 numbers (m, n) and scales (m,), without scales of inputs and the product."""
        grid, q = self.grid, self.q().to(torch.int8)  # of at most 7 bits
        scale = grid.scale[:, 0].expand(self.m)
        if self.form.bits == BINARY:
            return 2 * q - 1, scale / 2
        middle = int(self.form.middle) if grid.zero is None else grid.zero.to(torch.int8)
        return q - middle, scale.contiguous()


class BitsLinear(CodedLinear):
    """A linear layer whose weight is packed, and not learnt; gradients pass through it to what comes before."""

    held: Packed

    def __init__(self, held: Packed, bias: nn.Parameter | None, *, turned: bool = False) -> None:
        super().__init__(held, bias, turned=turned)
        self._ready: MadeOf[Any] | None = None

    def forward(self, x: Float[Tensor, "... n"]) -> Float[Tensor, "... m"]:
        """The outputs x W^T + b."""
        return frozen_product(x, self)

    def pulled(self, grad: Float[Tensor, "... m"]) -> Float[Tensor, "... n"]:
        """The gradient in the inputs; the weight is unpacked again for it."""
        return grad @ self.held.rows().to(grad.dtype)

    def product(self, x: Float[Tensor, "... n"]) -> Float[Tensor, "... m"]:
        """The product, without a gradient."""
        held = self.held
        traced = torch.compiler.is_compiling() or is_fake(x)
        if held.rounds_inputs:
            y = self._by_rounded(x, traced)
        else:
            few = x.numel() <= held.n * ROWS and held.m * held.n >= LEAST
            kernel = self._kernel(held) if few and x.is_cpu and not traced else None
            if kernel is not None:
                y = kernel(x)
                return y if self.bias is None else y + self.bias.to(y.dtype)
            y = F.linear(x, held.numbers().to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))
        left, right = held.left, held.right
        if left is None or right is None:
            return y
        return y + F.linear(F.linear(x, right.rows().to(x.dtype)), left.rows().to(x.dtype))

    def _by_rounded(self, x: Float[Tensor, "... n"], traced: bool) -> Float[Tensor, "... m"]:
        """The product of inputs rounded as int8 layers round them; in graphs, the same numbers in floating point."""
        scales = self.held.inputs
        x = x if scales is None else (x / scales.float()).to(x.dtype)
        if not traced:
            return self._integers().product(x)
        q, scale = self.held.int8()
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(rounded_inputs(x), (scale[:, None] * q).to(x.dtype), bias)

    def _kernel(self, held: Packed) -> Kernel | None:
        """The product of a few rows, with the weight as it needs it; made again only when the weight changes."""
        ready = self._ready
        if ready is None or not ready.fresh(own_parameters(held)):
            group = None if held.left is not None else group_for(held.form, held.n)
            product = None if group is None else kernel(held.q(), held.grid, held.inputs, group)
            ready = self._ready = MadeOf(own_parameters(held), product)
        return ready.value

    def _integers(self) -> Int8Linear:
        """The layer with int8 numbers in place of the packed ones; made again only when the weight changes."""
        ready = self._ready
        if ready is None or not ready.fresh(own_parameters(self.held)):
            layer = Int8Linear.holding(*self.held.int8(), self.bias)
            ready = self._ready = MadeOf(own_parameters(self.held), layer)
        return ready.value

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_ready": None}  # made again where it is copied to


class BitsExperts(CodedExperts):
    """One weight of all experts, packed; gradients pass through it to what comes before."""

    held: Packed

    def __init__(self, held: Packed, dense: ExpertsLinear) -> None:
        super().__init__(held, dense)
        self._layers: MadeOf[list[BitsLinear]] | None = None

    def product(self, x: Float[Tensor, "S n"], expert: int) -> Float[Tensor, "S m"]:
        """W_e x for rows of one expert, as a linear layer of few bits computes it."""
        y: Tensor = self._each()[expert](x)
        return y

    def _each(self) -> list[BitsLinear]:
        """A layer for each expert on slices of these numbers; built again only when they change."""
        held = (*own_parameters(self.held), self.bias)
        if self._layers is None or not self._layers.fresh(held):
            m = self.out_features
            parts = [self.held.part(slice(start, start + m)) for start in range(0, self.held.m, m)]
            biases = [None] * self.experts if self.bias is None else map(fixed, self.bias.detach().unbind())
            self._layers = MadeOf(held, [BitsLinear(*pair) for pair in zip(parts, biases, strict=True)])
        return self._layers.value

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_layers": None}  # made again where it is copied to


def checked(path: str, m: int, n: int, described: Any) -> Packed:
    """An empty packed weight of the form in a description from an untrusted file.

    Raises:
        ValueError: It is not one.
    """
    names = ("bits", "per", "group", "symmetric", "scaled", "rank", "rounds_inputs")
    check_keys(f"bits of {path}", described, names)
    bits, per, group, rank = (described[name] for name in ("bits", "per", "group", "rank"))
    if type(bits) not in (int, float) or bits not in BITS:
        raise ValueError(f"bits of {path} must be of {', '.join(f'{each:g}' for each in BITS)}; got {bits!r}")
    if per not in PER or type(group) is not int or group < 1:
        raise ValueError(f"grids of {path} must be per {', '.join(PER)}, of 1 input or more; got {per!r}, {group!r}")
    if type(described["symmetric"]) is not bool or type(described["scaled"]) is not bool:
        raise ValueError(f"symmetric and scaled of {path} must be true or false")
    if type(rank) is not int or not 0 <= rank <= min(m, n):
        raise ValueError(f"rank of {path} must be from 0 to {min(m, n)}, got {rank!r}")
    rounds = described["rounds_inputs"]
    if type(rounds) is not bool or (rounds and (per == "group" or bits > INT8_BITS)):
        raise ValueError(f"inputs of {path} are rounded beside weights of up to {INT8_BITS} bits by row or tensor")
    form = Form(bits, per, group, described["symmetric"])
    return Packed(m, n, form, scaled=described["scaled"], rank=rank, rounds_inputs=rounds)


def rounding_inputs(model: nn.Module) -> list[BitsLinear | BitsExperts]:
    """The layers that round their inputs."""
    layers = (layer for layer in model.modules() if isinstance(layer, BitsLinear | BitsExperts))
    return [layer for layer in layers if layer.held.rounds_inputs]
