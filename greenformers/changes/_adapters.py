"""Products of two narrow weights, learned beside weights of few bits that stay as they are.

A layer gives W x + L (R x), of which L (m, r) and R (r, n) are learned in float32 (LoRA, Hu 2022, arXiv:2106.09685;
beside rounded weights QLoRA, Dettmers 2023, arXiv:2305.14314) and then held in 8 bits, as those that `bits` adds
itself. A network whose weights fit in memory, and whose gradients do not, so learns what rounding has lost.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from greenformers.changes._bits_layers import BitsLinear, Packed
from greenformers.solve.low_rank_rest import narrow


class Adapter(nn.Module):
    """A product L R that is learned.

    Args:
        left: L (m, r).
        right: R (r, n).
    """

    def __init__(self, left: Float[Tensor, "m r"], right: Float[Tensor, "r n"]) -> None:
        super().__init__()
        self.left, self.right = nn.Parameter(left), nn.Parameter(right)

    def forward(self, x: Float[Tensor, "... n"]) -> Float[Tensor, "... m"]:
        """L (R x)."""
        return F.linear(F.linear(x, self.right.to(x.dtype)), self.left.to(x.dtype))


def adaptable(model: nn.Module, rank: int) -> list[BitsLinear]:
    """The linear layers of few bits that share their weight with no other layer.

    Raises:
        ValueError: There is none, or all have a product of another rank.
    """
    uses = Counter(id(module.held) for module in model.modules() if isinstance(getattr(module, "held", None), Packed))
    layers = [layer for layer in model.modules() if isinstance(layer, BitsLinear) and uses[id(layer.held)] == 1]
    if not layers:
        raise ValueError(
            f"adapters are learned beside linear layers of few bits, and {type(model).__name__} has none of its own"
        )
    ranks = {0 if layer.held.left is None else layer.held.left.n for layer in layers}
    if not ranks & {0, rank}:
        raise ValueError(f"the products beside the layers have rank {min(ranks)}: adapters must be so many, got {rank}")
    return layers


@contextmanager
def adapting(model: nn.Module, rank: int, seed: int) -> Iterator[list[nn.Parameter]]:
    """A `with` block in which products beside weights of few bits are learned, and nothing else; its parameters.

    A product that a layer has is learned on; where there is none, one of this rank begins as 0, with normal R.

    Raises:
        ValueError: There is no layer for them.
    """
    source = torch.Generator().manual_seed(seed)
    handles: list[Any] = []
    begun: list[tuple[BitsLinear, Adapter, Packed | None, Packed | None]] = []
    for layer in adaptable(model, rank):
        held = layer.held
        device = held.unit.device
        if held.left is None or held.right is None:
            r = min(rank, held.m, held.n)
            right = torch.randn(r, held.n, generator=source).to(device) / held.n**0.5
            adapter = Adapter(torch.zeros(held.m, r, device=device), right)
        else:
            adapter = Adapter(held.left.rows().detach(), held.right.rows().detach())
        begun.append((layer, adapter, held.left, held.right))
        held.left = held.right = layer._ready = None
        layer.adapter = adapter.train(layer.training)
        handles.append(layer.register_forward_hook(lambda module, args, out: out + module.adapter(args[0])))
    try:
        yield [parameter for _, adapter, _, _ in begun for parameter in adapter.parameters()]
    finally:
        for handle in handles:
            handle.remove()
        for layer, adapter, left, right in begun:
            del layer.adapter
            if adapter.left.count_nonzero():  # else nothing was learned
                left, right = (
                    Packed.of(*narrow(part.detach())).of_type(layer.held.like.dtype)
                    for part in (adapter.left, adapter.right)
                )
            layer.held.left, layer.held.right, layer._ready = left, right, None
