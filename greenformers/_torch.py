"""The wall to torch: private names of torch are used in this file, and in no other.

Each function says what it returns, which name of torch it depends on, and what would replace it if that name went;
`tests/packaging/test_walls.py` checks every name, so that an upgrade which drops one says what it breaks.
"""

import copy
import logging
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, overrides
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import DeviceType
from torch.autograd.profiler import profile
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


# Tensors that have a shape and no values.


def is_fake(x: Tensor) -> bool:
    """Whether a tensor has a shape and no values, as under torch.compile or `fake_tensors`.

    It depends on `torch._subclasses.fake_tensor.FakeTensor`. Code that makes every choice by shapes alone would not
    need to ask.
    """
    return isinstance(x, FakeTensor)


def fake_tensors() -> AbstractContextManager[Any]:
    """A context in which new tensors have no values; tensors from before the context keep theirs.

    It depends on `torch._subclasses.fake_tensor.FakeTensorMode`. Tensors on the "meta" device would take its place, at
    the price of not telling devices apart.
    """
    return FakeTensorMode(allow_non_fake_inputs=True)


class OperatorWatch(TorchDispatchMode):
    """Base of contexts that see each operator of torch after it ran; a subclass defines `saw`.

    It depends on `torch.utils._python_dispatch.TorchDispatchMode`, as does `torch.utils.flop_counter`; whatever
    that module depends on afterwards would take its place.
    """

    def saw(self, operator: Any, arguments: tuple[Any, ...], result: Any) -> None:
        """Take note of an operator, its positional arguments and its result."""
        raise NotImplementedError

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.saw(func, args, result)
        return result


def in_transform() -> bool:
    """Whether `torch.func.grad`, `vmap` or another transform of functions is active.

    It depends on `torch._C._are_functorch_transforms_active`. Functions of autograd that keep nothing but inputs and
    outputs, with rules of their own for each transform, would not need to ask.
    """
    return torch._C._are_functorch_transforms_active()


def function_modes() -> list[TorchFunctionMode]:
    """The modes of torch functions that are in force, the outermost first.

    It depends on `torch.overrides._get_current_function_mode_stack`. Code that takes its modes as an argument would not
    need to ask.
    """
    modes: list[TorchFunctionMode] = overrides._get_current_function_mode_stack()
    return modes


# Nested results.


def leaves(tree: Any) -> list[Any]:
    """The leaves of nested lists, tuples, dictionaries and model outputs, in order.

    It depends on `torch.utils._pytree.tree_leaves`; the package `optree` has the same, once model outputs are
    registered with it.
    """
    return _pytree.tree_leaves(tree)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same nested lists, tuples, dictionaries and model outputs with `function` applied to each leaf.

    It depends on `torch.utils._pytree.tree_map`; the package `optree` has the same, once model outputs are registered
    with it.
    """
    return _pytree.tree_map(function, tree)


# Products and gradients.


def softmax_gradient(gradient: Tensor, weights: Tensor) -> Tensor:
    """Gradient of the scores, from the gradient of their softmax over the last dimension and the softmax itself.

    It depends on `torch._softmax_backward_data`. `weights * (gradient - (gradient * weights).sum(-1, keepdim=True))`
    gives the same with two more tensors of that size.
    """
    return torch._softmax_backward_data(gradient, weights, -1, gradient.dtype)


def int8_matmul(a: Tensor, b: Tensor) -> Tensor:
    """The product of two int8 matrices (N, n) and (n, m) as int32 (N, m), also in a graph that is traced.

    It depends on `torch._int_mm`. `(a.int() @ b.int())` gives the same, slowly, and not on a GPU.
    """
    return padded_matmul(a, b) if a.is_cuda else torch._int_mm(a, b)


def padded_matmul(a: Tensor, b: Tensor) -> Tensor:
    """`int8_matmul` by a GPU, which takes more than 16 rows, and multiples of 8 of the other sizes."""
    (N, n), m = a.shape, b.shape[1]
    a, b = F.pad(a, (0, -n % 8, 0, max(0, 17 - N))), F.pad(b, (0, -m % 8, 0, -n % 8))
    return torch._int_mm(a, b)[:N, :m]


def has_fused_int8() -> bool:
    """Whether torch has `int8_linear`, the kernel that rounds inputs, multiplies and scales in one pass.

    It depends on the names of `pack_int8`. An upgrade to a torch without them turns it False, and int8 layers then
    round by operators and multiply by `int8_matmul`, or by `prepacked_int8_matmul` where that is faster.
    """
    return hasattr(torch, "_make_per_channel_quantized_tensor") and hasattr(torch.ops.quantized, "linear_dynamic")


def has_vnni() -> bool:
    """Whether the processor multiplies int8 numbers four at a time and adds them as int32.

    It depends on `torch.cpu._is_vnni_supported`. Without it, the answer that is safe everywhere is False.
    """
    return torch.cpu._is_vnni_supported()


def pack_int8(weight: Tensor, scale: Tensor, bias: Tensor | None) -> Any:
    """An int8 weight (m, n), the scale of each row (m,) and a bias (m,) in the layout that `int8_linear` reads.

    It depends on `torch._make_per_channel_quantized_tensor` and `torch.ops.quantized.linear_prepack`, a stack that
    torch proposes to remove. See `has_fused_int8` for what takes its place.
    """
    zero = torch.zeros(len(weight), dtype=torch.long)
    with warnings.catch_warnings():
        # torch warns that tensors of this kind are to go; where they are gone, `has_fused_int8` says so.
        warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)
        quantized = torch._make_per_channel_quantized_tensor(weight, scale.double(), zero, 0)
    return torch.ops.quantized.linear_prepack(quantized, None if bias is None else bias.detach().float())


def int8_linear(x: Tensor, packed: Any) -> Tensor:
    """A linear layer with a packed int8 weight on float32 inputs (..., n), of two dimensions or more, on a CPU.

    The inputs are quantised to 8 bits by their least and greatest value, and the products are summed as int32.
    It depends on `torch.ops.quantized.linear_dynamic`. See `has_fused_int8` for what takes its place.
    """
    # A processor without VNNI adds pairs of products in 16 bits: inputs get one bit less, or the sums overflow.
    return torch.ops.quantized.linear_dynamic(x, packed, not has_vnni())


@cache
def has_prepacked_int8() -> bool:
    """Whether torch multiplies by int8 weights that oneDNN has put in order beforehand; found out by trying.

    It depends on the names of `prepack_int8` and `prepacked_int8_matmul`. Without them int8 layers use
    `int8_matmul`, which puts a weight in order at every call.
    """
    # The largest numbers: without VNNI oneDNN adds pairs of products in 16 bits, where these overflow.
    weight = torch.full((16, 16), 127, dtype=torch.int8)
    try:
        packed = prepack_int8(weight, torch.ones(16))
        product = prepacked_int8_matmul(weight.view(torch.uint8) + 128, packed)
        return product.equal(torch.full((16, 16), 16.0 * 127 * 127))
    except (AttributeError, RuntimeError):  # no such operator, or none for this processor
        return False


def prepack_int8(weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """An int8 weight (m, n) in the order of oneDNN, the scale of each row (m,), and their zeros.

    It depends on `torch.ops.onednn.qlinear_prepack`. See `has_prepacked_int8` for what takes its place.
    """
    return torch.ops.onednn.qlinear_prepack(weight, None), scale, torch.zeros(len(weight), dtype=torch.long)


def prepacked_int8_matmul(q: Tensor, packed: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """The float32 product (N, m) of integers (N, n), held as uint8 with 128 added, and of a weight times its scales.

    It depends on `torch.ops.onednn.qlinear_pointwise`. See `has_prepacked_int8` for what takes its place.
    """
    product: Tensor = torch.ops.onednn.qlinear_pointwise(
        q, 1.0, 128, *packed, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return product


@cache
def has_int4() -> bool:
    """Whether torch multiplies by weights of 4 bits on this processor; found out by trying.

    It depends on the names of `pack_int4` and `int4_matmul`. Without them weights of few bits are unpacked for every
    product.
    """
    try:
        grids = torch.ones(1, 16, 2, dtype=torch.bfloat16)
        product = int4_matmul(torch.ones(1, 32), pack_int4(torch.full((16, 32), 9)), 32, grids)
        return product.equal(torch.full((1, 16), 64.0))
    except (AttributeError, RuntimeError):  # no such operator, or none for this processor
        return False


def pack_int4(q: Tensor) -> Tensor:
    """Numbers (m, n) from 0 to 15 in the layout that `int4_matmul` reads; m is a multiple of 16.

    It depends on `torch.ops.aten._convert_weight_to_int4pack_for_cpu`. See `has_int4` for what takes its place.
    """
    return aten._convert_weight_to_int4pack_for_cpu(q.int(), 1)


def int4_matmul(x: Tensor, packed: Tensor, group: int, grids: Tensor) -> Tensor:
    """The product (N, m) of inputs (N, n), rounded to bfloat16, and weights s (q - 8) + c of 4 bits, in their type.

    It depends on `torch._weight_int4pack_mm_for_cpu`, which starts sooner than the same operator of `torch.ops`. See
    `has_int4` for what takes its place.

    Args:
        x: Inputs; n is a multiple of the group.
        packed: Numbers q as `pack_int4` gives them.
        group: Inputs that share s and c: 32, 64, 128 or 256.
        grids: s and c (n / group, m, 2), bfloat16.
    """
    return torch._weight_int4pack_mm_for_cpu(x.bfloat16(), packed, group, grids).to(x.dtype)


class Operators:
    """Operators that torch runs under names it does not promise to keep, by what they do.

    Each is looked up when it is used, so that only code that needs it fails where torch no longer has it. Counting and
    timing would then use the name that `OperatorWatch` sees instead.
    """

    @property
    def cpu_attention(self) -> Any:
        """The operator that `scaled_dot_product_attention` runs on a CPU."""
        return aten._scaled_dot_product_flash_attention_for_cpu

    @property
    def cpu_attention_backward(self) -> Any:
        """The operator that the backward pass of `scaled_dot_product_attention` runs on a CPU."""
        return aten._scaled_dot_product_flash_attention_for_cpu_backward

    @property
    def int8_matmul(self) -> Any:
        """The operator that `int8_matmul` of this file runs."""
        return aten._int_mm

    @property
    def grouped_matmul(self) -> Any:
        """The operator of matrix products by group of rows, as of tokens with the weights of their experts."""
        return aten._grouped_mm

    @property
    def prepacked_int8_matmul(self) -> Any:
        """The operator that `prepacked_int8_matmul` of this file runs; None where torch was built without it."""
        return getattr(torch.ops.onednn, "qlinear_pointwise", None)

    @property
    def int8_linear(self) -> Any:
        """The operator that `int8_linear` of this file runs; None where torch has it no longer."""
        return getattr(torch.ops.quantized, "linear_dynamic", None)

    @property
    def int4_matmul(self) -> Any:
        """The operator that `int4_matmul` of this file runs; None where torch was built without it."""
        return getattr(aten, "_weight_int4pack_mm_for_cpu", None)

    @property
    def static_int8_linear(self) -> Any:
        """A linear layer of `torch.ao.quantization`, of int8 inputs; None where torch has it no longer."""
        return getattr(torch.ops.quantized, "linear", None)

    @property
    def gpu_recurrence(self) -> Any:
        """A whole recurrent layer on a GPU."""
        return aten._cudnn_rnn

    @property
    def unchecked_view(self) -> Any:
        """A reshape within other operators, which copies nothing."""
        return aten._unsafe_view

    @property
    def softmax(self) -> Any:
        """The operator that `softmax` runs under autograd."""
        return aten._softmax

    @property
    def softmax_backward(self) -> Any:
        """The operator that the backward pass of `softmax` runs."""
        return aten._softmax_backward_data

    @property
    def safe_softmax(self) -> Any:
        """Softmax with zeros for rows that are -inf throughout, as in plain attention with a mask."""
        return aten._safe_softmax

    @property
    def index_put(self) -> Any:
        """The operator that writing at indices runs under autograd."""
        return aten._index_put_impl_


operators = Operators()


# Attributes of modules and tensors.


def own_parameters(module: Any) -> Any:
    """The parameters of a module, without those of its parts; in no time.

    It depends on `Module._parameters`. `module.parameters(recurse=False)` gives the same, in ten times as long.
    """
    return module._parameters.values()


def version(x: Tensor) -> int:
    """How often a tensor was changed in place; a result computed from it is out of date once this number grows.

    It depends on `Tensor._version`. A copy to compare with would take its place.
    """
    return x._version


def has_forward_hooks(module: nn.Module) -> bool:
    """Whether a module has hooks that run before or after its `forward`.

    It depends on `Module._forward_hooks` and `Module._forward_pre_hooks`. Calling every module in turn would take its
    place, and code that computes several modules at once could no longer do so.
    """
    return bool(module._forward_hooks or module._forward_pre_hooks)


def without_parameters(module: nn.Module) -> nn.Module:
    """A module of the same class with the same attributes and inner modules, and no parameters of its own.

    It depends on `torch.nn.Module._parameters`, `_modules` and `_buffers`. A deep copy without
    its parameters would take its place, at the price of holding them twice for a while.
    """
    twin = copy.copy(module)
    vars(twin).update(_parameters={}, _modules=dict(module._modules), _buffers=dict(module._buffers))
    return twin


def padding_of(convolution: nn.Module) -> list[int]:
    """How much a convolution pads each side of its input, as `torch.nn.functional.pad` takes it: last dimension first.

    It depends on `_reversed_padding_repeated_twice` of torch's convolutions. Their `padding`, by number or "same", is
    enough to compute it.
    """
    layer: Any = convolution
    return list(layer._reversed_padding_repeated_twice)


# Compilers, exporters and profilers.


def block_mask(
    sees: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], heads: int, queries: int, keys: int, device: torch.device
) -> Any:
    """The `BlockMask` of FlexAttention for all examples of a batch: on a GPU by a compiled function, block by block.

    It depends on the argument `_compile` of `torch.nn.attention.flex_attention.create_block_mask`, without which the
    whole mask (heads, queries, keys) is made on the way.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(sees, None, heads, queries, keys, device=str(device), _compile=device.type == "cuda")


def compile_error() -> type[Exception]:
    """The base of the errors that torch.compile raises where it cannot compile, for want of a C++ compiler say.

    It depends on `torch._dynamo.exc.TorchDynamoException`, which is slow to import. `RuntimeError`, its own base,
    would take its place, and would hide the errors of networks.
    """
    from torch._dynamo.exc import TorchDynamoException

    return TorchDynamoException


def onnx_log() -> logging.Logger:
    """The logger to which torch's exporter to ONNX writes which operators are missing, such as those of torchvision.

    It depends on the name of the module `torch.onnx._internal.exporter._registration`, the name of its logger. The
    messages would be printed if it were renamed; they do no harm.
    """
    return logging.getLogger("torch.onnx._internal.exporter._registration")


def cpu_allocations(call: Callable[[], object]) -> list[int]:
    """Bytes of each allocation on the CPU during a call, in order of time; a release counts as negative.

    It depends on the events of `torch.autograd.profiler.profile.kineto_results`. The profiler's `function_events` add
    up the allocations of an operator, so that memory released before its end is not seen.
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


# Modules whose `forward` is computed without calling them.


def is_watched(module: nn.Module) -> bool:
    """Whether a module's call does more than the `forward` of its class: hooks, or another function in its place.

    It depends on `torch.nn.Module._forward_hooks` and `_forward_pre_hooks`. Calling modules always would take its
    place.
    """
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__)


def flat(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """The `forward` of a module that is not watched, as a function that calls no module.

    Weights are read at each call, as the module may hold others by then. It depends on what `forward` of `nn.Linear`
    and `nn.LayerNorm` does.
    """
    own: Any = module
    if type(module) is nn.Linear:
        return lambda x: F.linear(x, own.weight, own.bias)
    if type(module) is nn.LayerNorm:
        return lambda x: torch.layer_norm(x, own.normalized_shape, own.weight, own.bias, own.eps)
    if hasattr(module, "flat"):
        return own.flat()
    return module.forward
