"""The wall to torch: whatever of torch this package uses and torch does not promise to keep stands here, and only here.

Each function says what it gives, which name of torch it stands on, and what would take its place if that name went;
`tests/packaging/test_walls.py` asks for every name, so that an upgrade which drops one says what it breaks.
"""

import copy
import logging
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import DeviceType
from torch.autograd.profiler import profile
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


# Tensors that have a shape and no content.


def is_fake(x: Tensor) -> bool:
    """Whether a tensor stands for one whose content nobody knows, as under torch.compile or `fake_tensors`.

    It stands on `torch._subclasses.fake_tensor.FakeTensor`. Code that makes every choice by shapes alone would not
    need to ask.
    """
    return isinstance(x, FakeTensor)


def fake_tensors() -> AbstractContextManager[Any]:
    """A context in which tensors are made without content, beside those with content that were there before.

    It stands on `torch._subclasses.fake_tensor.FakeTensorMode`. Tensors on the "meta" device would take its place, at
    the price of not telling devices apart.
    """
    return FakeTensorMode(allow_non_fake_inputs=True)


class OperatorWatch(TorchDispatchMode):
    """Base of contexts that are told of each operator of torch after it ran; a subclass defines `saw`.

    It stands on `torch.utils._python_dispatch.TorchDispatchMode`, on which `torch.utils.flop_counter` stands too: what
    that class is built on afterwards would take its place.
    """

    def saw(self, operator: Any, arguments: tuple[Any, ...], result: Any) -> None:
        """Take note of an operator, its positional arguments and its result."""
        raise NotImplementedError

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.saw(func, args, result)
        return result


def in_transform() -> bool:
    """Whether `torch.func.grad`, `vmap` or another transform of functions is at work.

    It stands on `torch._C._are_functorch_transforms_active`. Functions of autograd that keep nothing but inputs and
    outputs, with rules of their own for each transform, would not need to ask.
    """
    return torch._C._are_functorch_transforms_active()


# Nested results.


def leaves(tree: Any) -> list[Any]:
    """What stands in nested lists, tuples, dictionaries and model outputs, in order.

    It stands on `torch.utils._pytree.tree_leaves`; the package `optree` has the same, once told of model outputs.
    """
    return _pytree.tree_leaves(tree)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same nested lists, tuples, dictionaries and model outputs with `function` of each thing in them.

    It stands on `torch.utils._pytree.tree_map`; the package `optree` has the same, once told of model outputs.
    """
    return _pytree.tree_map(function, tree)


# Products and gradients.


def softmax_gradient(gradient: Tensor, weights: Tensor) -> Tensor:
    """Gradient of the scores, from the gradient of their softmax over the last dimension and the softmax itself.

    It stands on `torch._softmax_backward_data`. `weights * (gradient - (gradient * weights).sum(-1, keepdim=True))`
    gives the same with two more tensors of that size.
    """
    return torch._softmax_backward_data(gradient, weights, -1, gradient.dtype)


def int8_matmul(a: Tensor, b: Tensor) -> Tensor:
    """The product of two int8 matrices (N, n) and (n, m) as int32 (N, m), also in a graph that is traced.

    It stands on `torch._int_mm`. `(a.int() @ b.int())` gives the same, slowly, and not on a GPU.
    """
    return torch._int_mm(a, b)


def pack_int8(weight: Tensor, scale: Tensor, bias: Tensor | None) -> Any:
    """An int8 weight (m, n), the scale of each row (m,) and a bias (m,) in the layout that `int8_linear` reads.

    It stands on `torch._make_per_channel_quantized_tensor` and `torch.ops.quantized.linear_prepack`, a stack that torch
    proposes to remove. See `int8_linear` for what would take its place.
    """
    zero = torch.zeros(len(weight), dtype=torch.long)
    with warnings.catch_warnings():
        # torch warns that tensors of this kind are to go; it has no other way to the fused kernel yet.
        warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)
        quantized = torch._make_per_channel_quantized_tensor(weight, scale.double(), zero, 0)
    return torch.ops.quantized.linear_prepack(quantized, None if bias is None else bias.detach().float())


def int8_linear(x: Tensor, packed: Any) -> Tensor:
    """A linear layer with a packed int8 weight on float32 inputs (..., n), of two dimensions or more, on a CPU.

    The inputs are quantised to 8 bits by their least and greatest value, and the products are summed as int32.
    It stands on `torch.ops.quantized.linear_dynamic` and `torch.cpu._is_vnni_supported`. Rounding the inputs and
    `int8_matmul`, as int8 layers do in a graph, would take its place: the same but for rounding, and slower.
    """
    # A processor without VNNI adds pairs of products in 16 bits: inputs get one bit less, or the sums overflow.
    spare_a_bit = not torch.cpu._is_vnni_supported()
    return torch.ops.quantized.linear_dynamic(x, packed, spare_a_bit)


class Operators:
    """Operators that torch runs under names it does not promise to keep, by what they do.

    Each is looked up when it is asked for, so that only who needs it fails where torch has it no more. Counting and
    timing would then go by the name that `OperatorWatch` sees in its place.
    """

    @property
    def cpu_attention(self) -> Any:
        """What `scaled_dot_product_attention` becomes on a CPU."""
        return aten._scaled_dot_product_flash_attention_for_cpu

    @property
    def cpu_attention_backward(self) -> Any:
        """What the backward pass of `scaled_dot_product_attention` becomes on a CPU."""
        return aten._scaled_dot_product_flash_attention_for_cpu_backward

    @property
    def int8_matmul(self) -> Any:
        """What `int8_matmul` of this file runs."""
        return aten._int_mm

    @property
    def grouped_matmul(self) -> Any:
        """What products of rows by group become, as of tokens with the weights of their experts."""
        return aten._grouped_mm

    @property
    def int8_linear(self) -> Any:
        """What `int8_linear` of this file runs."""
        return torch.ops.quantized.linear_dynamic

    @property
    def static_int8_linear(self) -> Any:
        """A linear layer of `torch.ao.quantization`, whose inputs are int8 already."""
        return torch.ops.quantized.linear

    @property
    def gpu_recurrence(self) -> Any:
        """A whole recurrent layer on a GPU."""
        return aten._cudnn_rnn

    @property
    def unchecked_view(self) -> Any:
        """A reshape within other operators, which moves nothing."""
        return aten._unsafe_view

    @property
    def softmax(self) -> Any:
        """What `softmax` becomes under autograd."""
        return aten._softmax

    @property
    def softmax_backward(self) -> Any:
        """What the backward pass of `softmax` becomes."""
        return aten._softmax_backward_data

    @property
    def safe_softmax(self) -> Any:
        """Softmax with zeros for rows that are -inf throughout, as in plain attention with a mask."""
        return aten._safe_softmax

    @property
    def index_put(self) -> Any:
        """What writing at indices becomes under autograd."""
        return aten._index_put_impl_


operators = Operators()


# What modules and tensors know of themselves.


def version(x: Tensor) -> int:
    """How often a tensor was changed in place: who keeps what follows from it sees by that when it no longer does.

    It stands on `Tensor._version`. A copy to compare with would take its place.
    """
    return x._version


def has_forward_hooks(module: nn.Module) -> bool:
    """Whether someone waits for the calls of a module.

    It stands on `Module._forward_hooks` and `Module._forward_pre_hooks`. Calling every module in turn would take its
    place: whoever computes several at once could no longer do so.
    """
    return bool(module._forward_hooks or module._forward_pre_hooks)


def without_parameters(module: nn.Module) -> nn.Module:
    """A module of the same class with the same attributes and inner modules, and no parameters of its own.

    It stands on `torch.nn.Module._parameters`, `_modules` and `_buffers`. A deep copy, from which parameters are
    deleted, would take its place: at the price of holding them twice for a while.
    """
    made = copy.copy(module)
    vars(made).update(_parameters={}, _modules=dict(module._modules), _buffers=dict(module._buffers))
    return made


def padding_of(convolution: nn.Module) -> list[int]:
    """How much a convolution pads each side of its input, as `torch.nn.functional.pad` takes it: last dimension first.

    It stands on `_reversed_padding_repeated_twice` of torch's convolutions. Their `padding`, by number or "same", says
    the same to who works it out.
    """
    layer: Any = convolution
    return list(layer._reversed_padding_repeated_twice)


# Compilers, exporters and profilers.


def block_mask(
    sees: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], heads: int, queries: int, keys: int, device: torch.device
) -> Any:
    """The `BlockMask` of FlexAttention for all examples of a batch: on a GPU by a compiled function, block by block.

    It stands on the argument `_compile` of `torch.nn.attention.flex_attention.create_block_mask`, without which the
    whole mask (heads, queries, keys) is made on the way.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(sees, None, heads, queries, keys, device=str(device), _compile=device.type == "cuda")


def compile_error() -> type[Exception]:
    """The base of what torch.compile raises where it cannot compile, for want of a C++ compiler say.

    It stands on `torch._dynamo.exc.TorchDynamoException`, which takes long to import. `RuntimeError`, its own base,
    would take its place, and would hide the errors of networks.
    """
    from torch._dynamo.exc import TorchDynamoException

    return TorchDynamoException


def onnx_log() -> logging.Logger:
    """Where torch's exporter to ONNX says which operators it does without, such as those of torchvision.

    It stands on the name of the module `torch.onnx._internal.exporter._registration`, which logs under its own. The
    messages would be printed if it were renamed; they do no harm.
    """
    return logging.getLogger("torch.onnx._internal.exporter._registration")


def cpu_allocations(call: Callable[[], object]) -> list[int]:
    """Bytes of each allocation on the CPU during a call, in order of time; a release counts as negative.

    It stands on the events of `torch.autograd.profiler.profile.kineto_results`. The profiler's `function_events` add up
    what is allocated within an operator, so that what it drops before its end vanishes.
    """
    with profile(profile_memory=True) as profiler:
        call()
    assert profiler.kineto_results is not None  # a profile that has ended has them
    events = [
        event
        for event in profiler.kineto_results.events()
        if event.name() == "[memory]" and event.device_type() == DeviceType.CPU
    ]
    events.sort(key=lambda event: event.start_ns())
    return [event.nbytes() for event in events]


# Modules that are called without their call.


def is_watched(module: nn.Module) -> bool:
    """Whether a module's call does more than the `forward` of its class: hooks, or another function in its place.

    It stands on `torch.nn.Module._forward_hooks` and `_forward_pre_hooks`. To call modules always would take its place.
    """
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__)


def flat(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """What a module that is not watched computes, as a function that calls no module.

    Weights are read at each call: others may have taken their place. It stands on what `forward` of `nn.Linear` and
    `nn.LayerNorm` does.
    """
    own: Any = module
    if type(module) is nn.Linear:
        return lambda x: F.linear(x, own.weight, own.bias)
    if type(module) is nn.LayerNorm:
        return lambda x: torch.layer_norm(x, own.normalized_shape, own.weight, own.bias, own.eps)
    if hasattr(module, "flat"):
        return own.flat()
    return module.forward
