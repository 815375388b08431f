"""The int8 linear layer, and how weights become int8.

Weights: symmetric, one scale a row, s = max |w| / 127, w ~ s q. Inputs are quantised at every call (dynamically) by
their least and greatest value; sums are int32. Jacob 2017, arXiv:1712.05877. On a CPU the product is the fastest of
`greenformers.changes._int8_kernels`; elsewhere, and in a graph, integers are multiplied by operators. torch.compile
fuses what rounds each token by its greatest |x|; exported graphs round as the fused kernel does, by one step for all.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int8
from torch import Tensor, nn

from greenformers._torch import int8_matmul, is_fake, own_parameters
from greenformers.changes._frozen_product import frozen_product
from greenformers.changes._int8_kernels import LEVELS, Kernel, kernel
from greenformers.changes._made_of import MadeOf
from greenformers.lowrank.computed import computed
from greenformers.model._transformers import leave_as_made
from greenformers.train.bf16 import HALVES

JITTER = 1e-6


class Int8Linear(nn.Linear):
    """A linear layer with an int8 weight, which is not learnt; gradients pass through it to what comes before.

    It is an nn.Linear for libraries that look for linear layers, such as PEFT; its `weight` is the dense one.

    Args:
        in_features: Width n of the input.
        out_features: Width m of the output.
        bias: Add a bias.

    Attributes:
        quantised: q (m, n), int8.
        scale: s (m,), of the type of the dense weight if that is half precision, else float32.
    """

    bias: nn.Parameter | None  # type: ignore[assignment]  # so it is in nn.Linear too

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = in_features, out_features
        # First what is floating point: sentence-transformers takes a network's type from its first parameter.
        self.scale = fixed(torch.ones(out_features))
        self.quantised = fixed(torch.zeros(out_features, in_features, dtype=torch.int8))
        self.bias = fixed(torch.zeros(out_features)) if bias else None
        self._packed: MadeOf[Kernel] | None = None
        leave_as_made(self)

    @classmethod
    def of(cls, weight: Float[Tensor, "m n"], bias: nn.Parameter | None) -> "Int8Linear":
        """The int8 form of a dense weight and bias."""
        layer = cls(weight.shape[1], weight.shape[0], bias is not None)
        layer.quantised, layer.scale = quantised(weight)
        layer.bias = fixed(bias) if bias is not None and bias.is_inference() else bias  # which a head may share
        return layer

    @classmethod
    def holding(
        cls, quantised: Int8[Tensor, "m n"], scale: Float[Tensor, "m"], bias: nn.Parameter | None
    ) -> "Int8Linear":
        """The layer with these numbers and scales."""
        with torch.device("meta"):
            layer = cls(quantised.shape[1], quantised.shape[0], bias is not None)
        layer.quantised, layer.scale, layer.bias = fixed(quantised), fixed(scale), bias
        return layer

    @property
    def weight(self) -> Float[Tensor, "m n"]:  # type: ignore[override]
        """S q, the weight that the int8 numbers stand for; see `computed`."""
        return computed(lambda: self.scale[:, None] * self.quantised, tuple(self.quantised.shape), self.scale)

    def reset_parameters(self) -> None:
        """Nothing is reset: the weight is not learnt."""

    def forward(self, x: Float[Tensor, "... n"]) -> Float[Tensor, "... m"]:
        """The outputs x W^T + b, with W = s q."""
        return frozen_product(x, self)

    def pulled(self, grad: Float[Tensor, "... m"]) -> Float[Tensor, "... n"]:
        """The gradient in the inputs, as if they were not rounded."""
        return (grad * self.scale.to(grad.dtype)) @ self.quantised.to(grad.dtype)

    def product(self, x: Float[Tensor, "... n"]) -> Float[Tensor, "... m"]:
        """The product in integers, without a gradient."""
        if x.ndim == 1:
            return self.product(x[None])[0]
        if x.is_cpu and not torch.compiler.is_compiling() and not is_fake(x):
            return self._kernel()(x.float()).to(x.dtype)
        compiled = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
        product = self._compiled if compiled else self._in_graph
        return product(x.float().flatten(0, -2)).to(x.dtype).unflatten(0, x.shape[:-1])

    def _compiled(self, x: Float[Tensor, "N n"]) -> Float[Tensor, "N m"]:
        """The product with a step of each token, x ~ (a / 127) q with a = max |x|, which fuses with what is around."""
        largest = x.abs().amax(1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)  # a (N, 1)
        q = (x * (LEVELS / largest)).round().to(torch.int8)
        out = int8_matmul(q, self.quantised.T) * largest * (self.scale.float() / LEVELS)
        return out if self.bias is None else out + self.bias

    def _in_graph(self, x: Float[Tensor, "N n"]) -> Float[Tensor, "N m"]:
        """The product of the kernel `fused`: inputs as unsigned 8-bit integers, x ~ step (q - zero)."""
        low, high = x.amin((0, 1)).clamp(max=0), x.amax((0, 1)).clamp(min=0)
        step = (high - low) / 255
        step = torch.where(step == 0, 1.0, step)
        zero = (-low / step).round()
        q = ((x / step).round() + zero).clamp(0, 255) - 128  # signed, as the product takes it
        sums = int8_matmul(q.to(torch.int8), self.quantised.T)
        shift = (128 - zero) * self.quantised.sum(1, dtype=torch.int32)
        out = (sums + shift) * (step * self.scale.float())
        return out if self.bias is None else out + self.bias

    def _kernel(self) -> Kernel:
        """The product with the weight, which it packs; packed again only when the weight changes."""
        packed = self._packed
        if packed is None or not packed.fresh(own_parameters(self)):
            packed = self._packed = MadeOf(own_parameters(self), kernel(self.quantised, self.scale.float(), self.bias))
        return packed.value

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_packed": None}  # made again where it is copied to


def quantised(weight: Float[Tensor, "*experts m n"]) -> tuple[nn.Parameter, nn.Parameter]:
    """A weight as int8 numbers q and scales s of its rows.

    Raises:
        ValueError: The weight holds values that are not finite.
    """
    dtype = weight.dtype if weight.dtype in HALVES else torch.float32
    weight = weight.detach().float()
    if not bool(weight.isfinite().all()):
        raise ValueError("a weight holds values that are not finite")
    # Scales are of the type that the network is in, and the numbers are of these scales.
    least = 2.0**-20 if dtype == torch.float16 else torch.finfo(dtype).tiny  # float16 has smaller ones, less exact
    scale = (weight.abs().amax(-1).clamp(min=1e-12) / LEVELS).to(dtype).clamp(min=least)
    numbers = (weight / scale.float()[..., None]).round().clamp(-LEVELS, LEVELS)
    # In the order of rows, also where the weight is held transposed.
    return fixed(numbers.to(torch.int8).contiguous()), fixed(scale)


def fixed(x: Tensor) -> nn.Parameter:
    """A parameter that is not learnt, but counted and saved as one."""
    with torch.inference_mode(False):  # so that changes in place are counted, see `version`
        return nn.Parameter(x.clone() if x.is_inference() else x, requires_grad=False)


@contextmanager
def off_by_last_digits(layers: Iterable[nn.Module], seed: int) -> Iterator[None]:
    """A `with` block in which inputs of layers are changed by about `JITTER` of themselves, at random."""
    draw = torch.Generator().manual_seed(seed)

    def off(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x = args[0]
        return (x + JITTER * x * torch.randn(x.shape, generator=draw).to(x), *args[1:])

    handles = [layer.register_forward_pre_hook(off) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
