"""Linear layers and embeddings whose weights are stored in few bits, packed, with their grids.

A weight (m, n) is w = s (q - z), see `greenformers.solve.grid`. Numbers that are not floating point keep their bits
when a network is cast, so steps in float16 are held as int16.
"""

from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from greenformers.changes._frozen_product import frozen_product
from greenformers.changes._int8_linear import fixed
from greenformers.lowrank.computed import computed
from greenformers.model._transformers import leave_as_made
from greenformers.solve.bit_packing import pack, packed_width, unpack
from greenformers.solve.grid import Form, Grid


class Packed(nn.Module):
    """A weight (m, n) in few bits.

    Args:
        m, n: Its size.
        form: The form of its grids.
        scaled: Whether inputs have scales of their own, by which columns were multiplied before they were rounded.

    Attributes:
        unit: The number that steps are multiples of, (1,) float32.
        steps: s / unit (m, G) or (1, 1), the bits of float16 as int16.
        zero: z, as many, uint8; None where grids are symmetric.
        packed: q, 8 numbers in N bytes, (m, bytes) uint8.
        inputs: Scales of the inputs (n,), float32; or None.
    """

    def __init__(self, m: int, n: int, form: Form, *, scaled: bool = False) -> None:
        super().__init__()
        self.m, self.n, self.form = m, n, form
        size = (1, 1) if form.per == "tensor" else (m, -(-n // form.group_of(n)))
        # First what is floating point: sentence-transformers takes a network's type from its first parameter.
        self.unit = fixed(torch.ones(1))
        self.steps = fixed(torch.ones(size, dtype=torch.float16).view(torch.int16))
        self.zero = None if form.symmetric else fixed(torch.zeros(size, dtype=torch.uint8))
        self.packed = fixed(torch.zeros(m, packed_width(n, form.bits), dtype=torch.uint8))
        self.inputs = fixed(torch.ones(n)) if scaled else None

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

    @property
    def described(self) -> dict[str, Any]:
        """What must be known to place an empty one: its form."""
        return {**asdict(self.form), "scaled": self.inputs is not None}

    @property
    def more_numbers(self) -> int:
        """How many numbers there are beyond the bytes that hold them, see `greenformers.measure.parameters`."""
        return self.m * self.n - self.packed.numel()

    @property
    def label(self) -> str:
        """The form, as in "4 bits, groups of 64"."""
        per = f"groups of {self.form.group}" if self.form.per == "group" else f"by {self.form.per}"
        return f"{self.form.bits:g} bits, {per}"

    def rows(self, at: Int[Tensor, "..."] | None = None) -> Float[Tensor, "... n"]:
        """Rows of the weight, float32; by default all."""
        packed: Tensor = self.packed
        steps = self.steps.view(torch.float16)
        zero: Tensor | None = self.zero
        if at is not None:
            packed = packed[at.flatten()]
            if self.form.per != "tensor":
                steps, zero = steps[at.flatten()], None if zero is None else zero[at.flatten()]
        grid = Grid(self.form, self.unit.float(), steps, zero)
        values = grid.values(unpack(packed, self.form.bits, self.n))
        values = values if self.inputs is None else values / self.inputs.float()
        return values if at is None else values.view(*at.shape, self.n)


class BitsLinear(nn.Linear):
    """A linear layer whose weight is packed, and not learnt; gradients pass through it to what comes before.

    It is an nn.Linear for libraries that look for linear layers, such as PEFT; its `weight` is the dense one.
    """

    bias: nn.Parameter | None  # type: ignore[assignment]  # so it is in nn.Linear too

    def __init__(self, held: Packed, bias: nn.Parameter | None) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = held.n, held.m
        self.held, self.bias = held, bias
        leave_as_made(self)

    @property
    def weight(self) -> Float[Tensor, "m n"]:  # type: ignore[override]
        """The weight that the packed numbers stand for; see `computed`."""
        return computed(self.held.rows, (self.held.m, self.held.n), self.held.unit)

    def reset_parameters(self) -> None:
        """Nothing is reset: the weight is not learnt."""

    def forward(self, x: Float[Tensor, "... n"]) -> Float[Tensor, "... m"]:
        """The outputs x W^T + b."""
        return frozen_product(x, self)

    def pulled(self, grad: Float[Tensor, "... m"]) -> Float[Tensor, "... n"]:
        """The gradient in the inputs; the weight is unpacked again for it."""
        return grad @ self.held.rows().to(grad.dtype)

    def product(self, x: Float[Tensor, "... n"]) -> Float[Tensor, "... m"]:
        """The product, without a gradient."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.held.rows().to(x.dtype), bias)


class BitsEmbedding(nn.Module):
    """An embedding whose rows are packed; only those that are looked up are unpacked."""

    def __init__(self, held: Packed, padding_idx: int | None = None) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim, self.padding_idx = held.m, held.n, padding_idx
        self.held = held

    @property
    def weight(self) -> Float[Tensor, "entries d"]:
        """The rows that the packed numbers stand for; see `computed`."""
        return computed(self.held.rows, (self.held.m, self.held.n), self.held.unit)

    def forward(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "... d"]:
        """Rows of the ids, of the type of the network's other parameters."""
        return self.held.rows(ids).to(self.held.unit.dtype)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"
