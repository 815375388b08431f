"""Products of matrices in bf16, and on a CPU attention beside them in float32.

On a CPU torch's backward pass of attention takes 14 times as long in bf16 as in float32 (torch 2.13, MiniLM-L6, batches
of 64 x 24 tokens: 58 and 4.2 ms a layer), which is half of a step. With attention in float32, a step of batches of one
length takes half of its time in float32 on a processor that multiplies matrices in bf16. Batches of many lengths gain
less: oneDNN compiles such products for each shape, and keeps a thousand of them. Lengths that are multiples of `EIGHTS`
are few: of 100 steps of healing MiniLM-L6, 4 layers pruned to 0.5, compiling took 7.0 of 38 seconds, and 1.1 so. That
was on a processor with AMX; where AVX-512 alone multiplies in bf16 (AMD Zen 4), a step takes two thirds of its time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from greenformers._torch import map_leaves
from greenformers.measure.device import processor

Precision = Literal["fp32", "bf16", "fp16"]

HALVES = (torch.bfloat16, torch.float16)

EIGHTS = 8
"""Number of which the lengths of batches of texts are multiples where a CPU multiplies in bf16."""


class AttentionInFloat32(TorchFunctionMode):
    """A `with` block in which `scaled_dot_product_attention` on the CPU is computed in float32, and rounded."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if func is F.scaled_dot_product_attention:
            query = args[0] if args else named["query"]
            if query.dtype == torch.bfloat16 and query.device.type == "cpu":
                args, named = widened((args, named))
                with torch.autocast("cpu", enabled=False):
                    return func(*args, **named).to(query.dtype)
        return func(*args, **named)


def widened(tree: Any) -> Any:
    """The same nested arguments or outputs, with numbers of half precision in float32."""
    return map_leaves(lambda x: x.float() if isinstance(x, Tensor) and x.dtype in HALVES else x, tree)


@contextmanager
def products(precision: Precision, device: torch.device) -> Iterator[None]:
    """A `with` block in which matrices are multiplied in "bf16", where that is the precision."""
    if precision == "fp32":
        yield
        return
    with torch.autocast(device.type, dtype=torch.bfloat16), AttentionInFloat32():
        yield


def recomputed() -> tuple[AttentionInFloat32, AttentionInFloat32]:
    """The `with` blocks of a layer and of the same layer computed again, for `torch.utils.checkpoint`.

    In a backward pass a mode that is around it is not in force.
    """
    return AttentionInFloat32(), AttentionInFloat32()


def quickest() -> Precision:
    """The precision in which this machine trains fastest: "bf16" on a GPU or processor made for such products."""
    if torch.cuda.is_available():
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    has = processor()
    return "bf16" if has.get("amx_bf16") or has.get("avx512_bf16") else "fp32"
