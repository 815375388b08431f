"""Which units of a network to remove: those on which its loss depends least. Kwon 2022, arXiv:2204.09656.

Search: how many units each layer keeps, so that least Fisher information is lost within a budget over all layers.
Rearrangement: in each layer, units whose effects cancel go together, by the whole Fisher block.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from greenformers.solve.coupled import Coupled

Cost = Callable[[Coupled, int], float]
"""Cost of a layer with a number of units, in the units of the budget."""


def offered(layer: Coupled, multiple: int) -> list[int]:
    """The numbers of units that a layer may keep: multiples, and all."""
    step = multiple if layer.kind == "neurons" else 1
    return [*range(min(step, layer.count), layer.count, step), layer.count]


def check_budget(layers: Sequence[Coupled], share: float, cost: Cost, multiple: int) -> None:
    """Check that a share of the cost of all units can be kept.

    Raises:
        ValueError: It is less than the least number of units of each layer costs.
    """
    whole, least = (sum(cost(layer, offered(layer, multiple)[at]) for layer in layers) for at in (-1, 0))
    if share * whole * (1 + 1e-9) < least:
        least_of = {layer.kind: offered(layer, multiple)[0] for layer in layers}
        of_each = " and ".join(f"{size} {kind if size > 1 else kind[:-1]}" for kind, size in least_of.items())
        # Rounded up: what is named must be enough.
        raise ValueError(
            f"the share to keep must be at least {-(-least * 1000 // whole) / 1000:g}, {of_each} in each layer; "
            f"got {share}"
        )


def chosen(gradients: Tensor, keep: int) -> Tensor:
    """The units of a layer to keep: those with most Fisher information, rearranged by its whole block.

    The least |sum of the gradients of all dropped units|^2 over examples is sought: each kept unit, from the one with
    least information on, joins the dropped ones, and the one of them returns without which that sum is least.

    Args:
        gradients: Gradients g of the gates (examples, U).
        keep: Number of units to keep.

    Returns:
        Their numbers (keep,), ascending.
    """
    g = gradients.double()
    own = g.square().sum(0)
    order = own.argsort(descending=True)
    staying, dropped = order[:keep].flip(0), order[keep:].clone()
    if not len(dropped) or not keep:
        return order[:keep].sort().values
    total, left = g[:, dropped].sum(1), []
    for unit in staying:
        with_it = total + g[:, unit]
        candidates = torch.cat([dropped, unit[None]])
        # |t - g_s|^2 = |t|^2 - 2 <t, g_s> + |g_s|^2
        back = (own[candidates] - 2 * (with_it @ g[:, candidates])).argmin()
        left.append(candidates[back])
        total = with_it - g[:, candidates[back]]
        if back < len(dropped):
            dropped[back] = unit
    return torch.stack(left).sort().values
