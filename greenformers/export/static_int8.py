"""Int8 linear layers whose inputs are rounded by ranges that are known beforehand, from calibration. Jacob 2017, eq. 3.

    q_x = clamp(round(x / s_x) + z_x, 0, 255)     y = s_x s_w (q_x - z_x) q_w^T + b     arXiv:1712.05877

Runtimes multiply in integers where a graph says it in this form: QuantizeLinear and DequantizeLinear of the inputs by
one scale, DequantizeLinear of int8 weights by one scale a row, MatMul. A range that does not depend on the batch also
makes the output for a text independent of the texts beside it, as dynamic ranges do not.
"""

import copy
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from greenformers.changes._int8_linear import Int8Linear, off_by_last_digits

M = TypeVar("M", bound=nn.Module)
LARGEST = 255
"""Largest integer of an input, which is unsigned."""


@torch.library.custom_op("greenformers::static_int8_linear", mutates_args=())
def static_int8_linear(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, step: Tensor, zero: Tensor
) -> Tensor:
    """The layer in torch, by which exported files are checked: integers up to 2^24 are exact in float32.

    Args:
        x: Inputs (..., n).
        weight: Integers q_w of the weight (m, n), int8.
        scale: Scales s_w of its rows (m,).
        bias: Bias b (m,), if there is one.
        step: Scale s_x of the inputs, a scalar.
        zero: The integer z_x that stands for 0, a scalar of uint8.

    Returns:
        The outputs (..., m).
    """
    q = ((x / step).round() + zero).clamp(0, LARGEST) - zero.float()
    y = (q @ weight.T.to(q.dtype)) * (step * scale)
    return y if bias is None else y + bias


@static_int8_linear.register_fake
def _(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(weight))


class StaticInt8Linear(nn.Module):
    """An `Int8Linear` whose inputs lie in a known range; what lies beyond is cut off.

    Args:
        layer: The layer; its weight and bias are shared.
        low, high: Least and greatest input, not both 0.
    """

    def __init__(self, layer: Int8Linear, low: float, high: float) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.quantised, self.scale, self.bias = layer.quantised, layer.scale, layer.bias
        low, high = min(low, 0.0), max(high, 0.0)  # so that 0 is one of the integers
        step = (high - low) / LARGEST
        self.register_buffer("step", torch.tensor(step, dtype=torch.float32))
        self.register_buffer("zero", torch.tensor(round(-low / step), dtype=torch.uint8))

    def forward(self, x: Float[Tensor, "... n"]) -> Float[Tensor, "... m"]:
        """The outputs x W^T + b of rounded inputs."""
        y: Tensor = static_int8_linear(x, self.quantised, self.scale, self.bias, self.step, self.zero)
        return y


def input_ranges(model: nn.Module, batches: Iterable[Mapping[str, Tensor]]) -> dict[str, tuple[float, float]]:
    """Least and greatest input of each int8 linear layer that the batches reach, by path; none where all are 0.

    Args:
        model: A network in evaluation mode.
        batches: Keyword arguments of the network, without padding.
    """
    ranges: dict[str, tuple[float, float]] = {}

    def watch(path: str) -> Any:
        def see(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            low, high = torch.aminmax(args[0])
            least, greatest = ranges.get(path, (0.0, 0.0))
            ranges[path] = min(least, low.item()), max(greatest, high.item())

        return see

    layers = [(path, module) for path, module in model.named_modules() if isinstance(module, Int8Linear)]
    handles = [module.register_forward_pre_hook(watch(path)) for path, module in layers]
    try:
        with torch.inference_mode():
            for batch in batches:
                model(**batch)
    finally:
        for handle in handles:
            handle.remove()
    return {path: ends for path, ends in ranges.items() if ends[0] < ends[1]}


def static(model: M, ranges: Mapping[str, tuple[float, float]]) -> M:
    """A copy of a network whose int8 linear layers have static ranges; weights are shared with the network."""
    memo = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    twin = copy.deepcopy(model, memo)
    for path, (low, high) in ranges.items():
        parent, _, name = path.rpartition(".")
        layer = model.get_submodule(path)
        assert isinstance(layer, Int8Linear)
        setattr(twin.get_submodule(parent), name, StaticInt8Linear(layer, low, high))
    return twin


def jittered(model: nn.Module, seed: int) -> AbstractContextManager[None] | None:
    """A `with` block in which inputs of static layers are off by their last digits; None without such layers."""
    layers = [module for module in model.modules() if isinstance(module, StaticInt8Linear)]
    return off_by_last_digits(layers, seed) if layers else None
