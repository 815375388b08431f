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

from greenformers.changes._int8_linear import Int8Linear, off_by_last_digits, quantised
from greenformers.lowrank.linear import LED

M = TypeVar("M", bound=nn.Module)
LARGEST = 255
"""Largest integer of an input, which is unsigned."""

STRENGTH = 0.8
"""The exponent a of SmoothQuant. Of all-MiniLM-L6's embeddings the cosine to the dense ones is .9979 with it in all
layers, .9932 without smoothing, .9966 at .65 and .9979 at .9."""

GAIN = 4.0
"""Factor by which smoothing must reduce the energy of the noise to be worth a multiplication of the inputs. Cosines as
above: .9978 at 2, .9971 at 4, .9955 at 8; at 2 ONNX Runtime takes 7 % longer than without."""

Ranges = Mapping[str, tuple[Tensor, Tensor]]
"""Least and greatest input of each channel (n,) of int8 linear layers, by path."""


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
        layer: The layer; its bias is shared, and without smoothing its weight.
        low, high: Least and greatest input of each channel (n,), not all 0.
        smoothing: Factors s (n,) by which the inputs are divided, and the columns of the weight multiplied.
        divides: Whether the layer divides its inputs; else the layer before does, see `divide_outputs`.
    """

    def __init__(
        self,
        layer: Int8Linear,
        low: Float[Tensor, " n"],
        high: Float[Tensor, " n"],
        smoothing: Float[Tensor, " n"] | None = None,
        *,
        divides: bool = True,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.quantised, self.scale, self.bias = layer.quantised, layer.scale, layer.bias
        self.inverse: Tensor | None
        self.register_buffer("inverse", 1 / smoothing if smoothing is not None and divides else None)
        if smoothing is not None:
            low, high = low / smoothing, high / smoothing
            self.quantised, self.scale = quantised(layer.weight * smoothing)
        least, greatest = _ends(low, high)
        step = (greatest - least) / LARGEST
        self.register_buffer("step", torch.tensor(step, dtype=torch.float32))
        self.register_buffer("zero", torch.tensor(round(-least / step), dtype=torch.uint8))

    def forward(self, x: Float[Tensor, "... n"]) -> Float[Tensor, "... m"]:
        """The outputs x W^T + b of rounded inputs."""
        x = x if self.inverse is None else x * self.inverse
        y: Tensor = static_int8_linear(x, self.quantised, self.scale, self.bias, self.step, self.zero)
        return y

    def divide_outputs(self, s: Float[Tensor, " m"]) -> None:
        """Divide the outputs by factors: the integers stay as they are."""
        self.scale = nn.Parameter(self.scale / s, requires_grad=False)
        self.bias = None if self.bias is None else nn.Parameter(self.bias / s, requires_grad=False)


def _ends(low: Float[Tensor, " n"], high: Float[Tensor, " n"]) -> tuple[float, float]:
    """The range of all channels, with 0 in it, so that 0 is one of the integers."""
    return min(low.min().item(), 0.0), max(high.max().item(), 0.0)


def smoothing(
    weight: Float[Tensor, "m n"], low: Float[Tensor, " n"], high: Float[Tensor, " n"], gain: float = GAIN
) -> Float[Tensor, " n"] | None:
    """The factors s of eq. 4, or None where they would not reduce the noise of rounding enough.

    Inputs that are rounded by a step t are off by noise of variance t^2 / 12, and outputs by t^2 / 12 |W|^2.

    Args:
        weight: Weight of the layer, or of all layers with these inputs, one below the other.
        low: Least input of each channel.
        high: Greatest input of each channel.
        gain: Factor by which the energy of the noise must fall.
    """
    inputs, columns = torch.maximum(low.abs(), high.abs()), weight.abs().amax(0)
    if not (inputs.any() and columns.any()):
        return None
    inputs, columns = (x.clamp(min=1e-5 * x.max().item()) for x in (inputs, columns))
    s = inputs**STRENGTH / columns ** (1 - STRENGTH)

    def noise(s: Tensor) -> float:
        least, greatest = _ends(low / s, high / s)
        return (greatest - least) ** 2 * (weight * s).square().sum().item()

    return s if noise(s) * gain <= noise(torch.ones_like(s)) else None


def input_ranges(model: nn.Module, batches: Iterable[Mapping[str, Tensor]]) -> Ranges:
    """The ranges of the inputs of int8 linear layers that the batches reach; none where all inputs are 0.

    Args:
        model: A network in evaluation mode.
        batches: Keyword arguments of the network, without padding.
    """
    ranges: dict[str, tuple[Tensor, Tensor]] = {}

    def watch(path: str) -> Any:
        def see(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            low, high = torch.aminmax(args[0].flatten(0, -2), dim=0)
            before = ranges.get(path, (low, high))
            ranges[path] = torch.minimum(before[0], low), torch.maximum(before[1], high)

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
    return {path: (low.clone(), high.clone()) for path, (low, high) in ranges.items() if low.any() or high.any()}


def static(model: M, ranges: Ranges) -> M:
    """A copy of a network whose int8 linear layers have static ranges; other weights are shared with the network."""
    memo = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    twin = copy.deepcopy(model, memo)
    for paths in _with_the_same_inputs(ranges):
        layers: list[Any] = [model.get_submodule(path) for path in paths]
        low, high = ranges[paths[0]]
        before = _first_factor(twin, paths)  # which divides for nothing
        weight = torch.cat([layer.weight for layer in layers])  # one division for all of them
        s = smoothing(weight, low, high, GAIN if before is None else 1.0)
        if before is not None and s is not None:
            before.divide_outputs(s)
        for path, layer in zip(paths, layers, strict=True):
            parent, _, name = path.rpartition(".")
            setattr(twin.get_submodule(parent), name, StaticInt8Linear(layer, low, high, s, divides=before is None))
    return twin


def _first_factor(twin: nn.Module, paths: list[str]) -> StaticInt8Linear | None:
    """The first factor of a low-rank layer, where the path is that of its second one."""
    parent, _, name = paths[0].rpartition(".")
    layer = twin.get_submodule(parent)
    if len(paths) > 1 or not isinstance(layer, LED) or name != "decoder":
        return None
    return layer.encoder if isinstance(layer.encoder, StaticInt8Linear) else None


def _with_the_same_inputs(ranges: Ranges) -> list[list[str]]:
    """Paths of layers by their inputs, which are the same where all channels have the same range."""
    groups: dict[tuple[bytes, bytes], list[str]] = {}
    for path, (low, high) in ranges.items():
        groups.setdefault((low.numpy().tobytes(), high.numpy().tobytes()), []).append(path)
    return list(groups.values())


def jittered(model: nn.Module, seed: int) -> AbstractContextManager[None] | None:
    """A `with` block in which inputs of static layers are off by their last digits; None without such layers."""
    layers = [module for module in model.modules() if isinstance(module, StaticInt8Linear)]
    return off_by_last_digits(layers, seed) if layers else None
