"""Products of matrices in bf16, and on a CPU attention beside them in float32.

On a CPU torch's backward pass of attention takes 14 times as long in bf16 as in float32 (torch 2.13, MiniLM-L6, batches
of 64 x 24 tokens: 58 and 4.2 ms a layer), which is half of a step. With attention in float32 a step takes half of its
time in float32, on a processor that multiplies matrices in bf16.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

Precision = Literal["fp32", "bf16", "fp16"]


class AttentionInFloat32(TorchFunctionMode):
    """A `with` block in which `scaled_dot_product_attention` on the CPU is computed in float32, and rounded."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if func is F.scaled_dot_product_attention:
            query = args[0] if args else named["query"]
            if query.dtype == torch.bfloat16 and query.device.type == "cpu":
                args, named = tuple(_wide(x) for x in args), {name: _wide(x) for name, x in named.items()}
                with torch.autocast("cpu", enabled=False):
                    return func(*args, **named).to(query.dtype)
        return func(*args, **named)


def _wide(x: Any) -> Any:
    return x.float() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


@contextmanager
def products(precision: Precision, device: torch.device) -> Iterator[None]:
    """A `with` block in which matrices are multiplied in "bf16", where that is the precision."""
    if precision == "fp32":
        yield
        return
    with torch.autocast(device.type, dtype=torch.bfloat16), AttentionInFloat32():
        yield


def quickest() -> Precision:
    """The precision in which this machine trains fastest: "bf16" on a GPU or processor made for such products."""
    if torch.cuda.is_available():
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    has: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return "bf16" if has.get("amx_bf16") else "fp32"
