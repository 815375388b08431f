"""Products of 16-bit weights on a processor that has none of its own: in float32, a weight at a time.

Such a processor takes 16-bit numbers apart one after the other, several times as slowly as it multiplies in float32.
The sums are of float32 numbers either way and are rounded once, to 16 bits.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from greenformers.measure.device import processor
from greenformers.train.bf16 import HALVES


def lacks_halves() -> bool:
    """Whether this processor is known to have no products of bfloat16 numbers."""
    has = processor()
    return has.get("architecture") == "x86_64" and not (has.get("avx512_bf16") or has.get("amx_bf16"))


class WideProducts(TorchFunctionMode):
    """A `with` block in which linear layers on the CPU whose weights have 16 bits are computed in float32.

    What they give has 16 bits again. In memory is the weight of one layer at a time, in float32 too.

    Args:
        on: Whether they are; by default where the processor has no such products.
    """

    def __init__(self, *, on: bool | None = None) -> None:
        super().__init__()
        self.on = lacks_halves() if on is None else on

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if self.on and func is F.linear:
            return self._linear(*args, **named)
        return func(*args, **named)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if weight.dtype not in HALVES or x.dtype != weight.dtype or weight.device.type != "cpu":
            return F.linear(x, weight, bias)
        out = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
        return out.to(weight.dtype)
