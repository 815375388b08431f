"""Int8 weights of experts: each expert multiplies its own rows in integers, as an int8 linear layer does."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from greenformers._torch import version
from greenformers.changes._int8_linear import Int8Linear, fixed, quantised
from greenformers.lowrank.computed import computed
from greenformers.lowrank.experts import ExpertsLinear, Routed


class Int8Experts(nn.Module):
    """One weight of all experts as int8, in place of `ExpertsLinear`; gradients pass through it to what comes before.

    Args:
        experts: Number E of experts.
        in_features: Width n of the input.
        out_features: Width m of the output.
        bias: Add biases.
        transposed: True where the dense weight that it replaces was held transposed.

    Attributes:
        quantised: q (E, m, n), int8.
        scale: s (E, m), as of an int8 linear layer: one scale for each row of each expert.
        bias: Biases (E, m), None without.
    """

    def __init__(
        self, experts: int, in_features: int, out_features: int, bias: bool = True, transposed: bool = False
    ) -> None:
        super().__init__()
        self.experts, self.in_features, self.out_features = experts, in_features, out_features
        self.quantised = fixed(torch.zeros(experts, out_features, in_features, dtype=torch.int8))
        self.scale = fixed(torch.ones(experts, out_features))
        self.bias = fixed(torch.zeros(experts, out_features)) if bias else None
        self.transposed = transposed
        self._layers: tuple[Any, list[Int8Linear]] | None = None

    @classmethod
    def empty(cls, dense: ExpertsLinear) -> "Int8Experts":
        """An empty int8 form of dense weights, of the same sizes."""
        experts, m, n = dense.matrices.shape
        return cls(experts, n, m, dense.bias is not None, dense.transposed)

    @classmethod
    def of(cls, dense: ExpertsLinear) -> "Int8Experts":
        """The int8 form of dense weights and their biases."""
        layer = cls.empty(dense)
        layer.quantised, layer.scale = quantised(dense.matrices)
        layer.bias = dense.bias
        return layer

    @property
    def weight(self) -> Float[Tensor, "..."]:
        """S q, the weights that the int8 numbers stand for, as `ExpertsLinear` holds them; see `computed`."""
        experts, m, n = self.quantised.shape
        if self.transposed:
            return computed(lambda: (self.scale[..., None] * self.quantised).mT, (experts, n, m), self.scale)
        return computed(lambda: self.scale[..., None] * self.quantised, (experts, m, n), self.scale)

    def forward(self, x: Float[Tensor, "S n"], routed: Routed) -> Float[Tensor, "S m"]:
        """W_e x for each row x, where e is its expert."""
        parts = zip(x.split(routed.counts), self._each(), strict=True)
        outputs = [layer(part) for part, layer in parts if len(part)]
        return torch.cat(outputs) if outputs else x.new_zeros(0, self.out_features)

    def _each(self) -> list[Int8Linear]:
        """An int8 layer for each expert on slices of these numbers; built again only when the weight changes."""
        held = [part for part in (self.quantised, self.scale, self.bias) if part is not None]
        key = [(part.data_ptr(), version(part)) for part in held]
        if self._layers is None or self._layers[0] != key:
            biases = [None] * self.experts if self.bias is None else self.bias.detach().unbind()
            parts = zip(self.quantised.unbind(), self.scale.unbind(), biases, strict=True)
            self._layers = (key, [Int8Linear.holding(q, s, None if b is None else fixed(b)) for q, s, b in parts])
        return self._layers[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_layers": None}  # made again where it is copied to

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, experts={self.experts}, bias={self.bias is not None}"
