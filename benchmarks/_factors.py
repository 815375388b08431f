"""Ways to begin and to shrink the two factors of low-rank layers, for the study of how they are trained."""

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from greenformers.lowrank.linear import LED
from greenformers.train.low_rank import carried, factors, nearest


@torch.no_grad()
def begin_orthogonal(model: nn.Module) -> None:
    """Factors with orthogonal rows and columns, alike in size, whose product has the deviation that it has else."""
    for D, E in factors(model).values():
        m, n, r = len(D), E.shape[1], len(E)
        size = ((D @ E).std() * (m * n / r) ** 0.5).sqrt()
        D.copy_(size * nn.init.orthogonal_(torch.empty(m, r)))
        E.copy_(size * nn.init.orthogonal_(torch.empty(r, n)))


def by_energy(weights: dict[str, Tensor], budget: int) -> dict[str, int]:
    """Ranks that keep the most energy of matrices for so many parameters: largest sigma^2 a parameter first."""
    rows = []
    for name, weight in weights.items():
        m, n = weight.shape
        for place, value in enumerate(torch.linalg.svdvals(weight).tolist()):
            rows.append((value**2 / (m + n), name, place, m + n))
    ranks = dict.fromkeys(weights, 1)
    left = budget - sum(sum(weight.shape) for weight in weights.values())
    for _, name, place, cost in sorted(rows, reverse=True):
        if place and cost <= left:
            ranks[name] += 1
            left -= cost
    return ranks


@torch.no_grad()
def narrowed(model: nn.Module, ranks: dict[str, int], state: Optimizer | None) -> dict[Tensor, dict[str, Tensor]]:
    """Put layers of these ranks in place of the dense or low-rank ones of that name, by singular values.

    Args:
        model: The network, changed in place.
        ranks: Ranks by name of layer.
        state: The optimiser of the dense layers, whose averages are carried over; None: the factors begin without.

    Returns:
        What an optimiser knows of the new factors, see `carried`.
    """
    states: dict[Tensor, dict[str, Tensor]] = {}
    for name, rank in ranks.items():
        layer = model.get_submodule(name)
        weight = layer.weight
        assert isinstance(weight, Tensor)
        halves = decoder, encoder = nearest(weight.detach(), rank)
        bias = layer.bias
        low = LED(weight.shape[1], weight.shape[0], rank, bias=bias is not None).to(decoder.device)
        pair = low.decoder.weight, low.encoder.weight
        for factor, half in zip(pair, halves, strict=True):
            factor.copy_(half)
        if isinstance(bias, nn.Parameter):
            low.bias = bias
        if state is not None and weight in state.state:
            for kind, value in state.state[weight].items():
                for factor, own in zip(pair, carried(kind, value, decoder, encoder), strict=True):
                    states.setdefault(factor, {})[kind] = own
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, low)
    return states
