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
    products = g.T @ g  # (U, U)
    own = products.diagonal()
    order = own.argsort(descending=True)
    if keep in (0, len(order)):
        return order[:keep].sort().values
    gone = torch.ones(len(order), dtype=torch.bool, device=g.device)
    gone[order[:keep]] = False
    with_total = products[:, gone].sum(1)  # <t, g_u> of every unit u, with the sum t of what is dropped
    for unit in order[:keep].flip(0).tolist():
        gone[unit] = True
        with_total += products[unit]
        # |t - g_u|^2 = |t|^2 - 2 <t, g_u> + |g_u|^2
        back = (own - 2 * with_total).where(gone, torch.inf).argmin()
        gone[back] = False
        with_total -= products[back]
    return (~gone).nonzero().flatten()
