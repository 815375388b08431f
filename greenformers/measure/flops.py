"""Floating-point operations of a call, counted by torch's FlopCounterMode. A multiply-add is 2 FLOPs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from math import prod
from typing import Any, NoReturn

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from greenformers._torch import operators
from greenformers.attention._tiled_op import amount

aten = torch.ops.aten


def flops(call: Callable[[], object]) -> int:
    """Count the FLOPs of the matrix products, convolutions and attention that `call` runs, backward included.

    The call runs once, in the caller's gradient mode. FLOPs follow from shapes: masked or causal attention counts in
    full, 2 B H N M (D + Dv), even where its kernel skips masked pairs. The backward pass of fused attention counts the
    scores that it recomputes (5 products where the forward pass has 2, FlashAttention, Dao 2022, arXiv:2205.14135,
    algorithm 4; plain attention has stored them and counts 4). Elementwise work, softmax, normalisation, look-ups and
    Fourier transforms count 0. Kernels that torch.compile fused are not seen: count the uncompiled call.

    Args:
        call: Function that runs the network.

    Raises:
        ValueError: Raised where the call uses an operator whose products cannot be counted (fused recurrent layers).
    """
    counter = FlopCounterMode(display=False, custom_mapping=_FORMULAS)
    counter.mod_tracker = _NoModules()  # type: ignore[assignment]
    with _no_fused_encoder(), counter:
        call()
    return counter.get_total_flops()


class _NoModules(nullcontext[None]):
    """Stands for the tracker of the modules that FLOPs are counted by, where their total alone is asked for.

    In inference mode its hooks fail where a module is given a parameter, as the inducing points of isab are.
    """

    parents = ("Global",)


Size = tuple[int, ...]


# Formulas of the operators that FlopCounterMode leaves out or counts as 0. It passes shapes in place of tensors.


def _sdpa(q: Size, k: Size, v: Size, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(q, k, v)


def _sdpa_backward(grad_out: Size, q: Size, k: Size, v: Size, *_: Any, **__: Any) -> int:
    return sdpa_backward_flop_count(grad_out, q, k, v)


def _mv(matrix: Size, *_: Any, **__: Any) -> int:
    return 2 * prod(matrix)


def _addmv(_vector: Size, matrix: Size, *_: Any, **__: Any) -> int:
    return 2 * prod(matrix)


def _addmm(_sum: Size, left: Size, right: Size, *_: Any, **__: Any) -> int:
    return 2 * prod(left) * right[-1]


def _int8_matmul(left: Size, right: Size, *_: Any, **__: Any) -> int:
    return 2 * prod(left) * right[-1]


def _grouped_matmul(left: Size, right: Size, *_: Any, **__: Any) -> int:
    # Forward: rows of all groups, and one matrix a group. Gradient of the matrices: both sides have a row a position.
    return 2 * prod(left) * right[-1] if len(left) == 2 else 2 * left[1] * prod(right)


def _int8_linear(x: Size, *_: Any, out_shape: Size, **__: Any) -> int:
    return 2 * prod(x) * out_shape[-1]


def _convolution_backward(
    grad: Size, x: Size, weight: Size, _bias: Any, _stride: Any, _padding: Any, _dilation: Any, transposed: bool,
    _output_padding: Any, _groups: int, wanted: Sequence[bool], *_: Any, **__: Any,
) -> int:  # fmt: skip
    # Each of both gradients has the products of the forward pass; torch's formula counts those of the weight as often
    # as there are groups.
    return sum(wanted[:2]) * 2 * x[0] * prod((x if transposed else grad)[2:]) * prod(weight)


def _tiled(*arguments: Any, **_: Any) -> int:
    return amount(arguments).flops


def _uncounted(operator: Any) -> Callable[..., NoReturn]:
    def formula(*_: Any, **__: Any) -> NoReturn:
        raise ValueError(f"the FLOPs of {operator} cannot be counted")

    return formula


_FORMULAS: dict[Any, Callable[..., int]] = {
    operators.cpu_attention: _sdpa,
    operators.cpu_attention_backward: _sdpa_backward,
    aten.mv: _mv,
    aten.addmv: _addmv,
    aten.dot: _mv,
    aten.addmm_: _addmm,
    aten.baddbmm_: _addmm,
    aten.convolution_backward: _convolution_backward,
    operators.int8_matmul: _int8_matmul,
    operators.grouped_matmul: _grouped_matmul,
    operators.prepacked_int8_matmul: _int8_linear,
    operators.int8_linear: _int8_linear,
    operators.int4_matmul: _int8_linear,
    torch.ops.greenformers.tiled: _tiled,
    torch.ops.greenformers.tiled_backward: _tiled,
}
_FORMULAS |= {
    operator: _uncounted(operator)
    for operator in (aten.mkldnn_rnn_layer, operators.gpu_recurrence, operators.static_int8_linear)
}
_FORMULAS.pop(None, None)  # of operators that this torch does not have


@contextmanager
def _no_fused_encoder() -> Iterator[None]:
    """Switch off the fused operator that torch's encoder layer and attention use in inference; it cannot be counted."""
    was_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_enabled)
