"""Ways to begin, to shrink and to update the two factors of low-rank layers, for the study of how they are trained."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from greenformers.lowrank.linear import LED
from greenformers.train.low_rank import carried, factors, nearest
from greenformers.train.optimizer import MOMENTUM, orthogonalised

DAMPING = 0.01
"""Share of the largest eigenvalue of D^T D and E E^T that is added to all."""


class MuonOfProducts(Optimizer):
    """Muon's step for W = D E (m, n), of each factor the part that can be reached by it.

    Of all steps of D that change W by singular values of at most a, the steepest is

        dD = -a U(M (E E^T)^-1/2) (E E^T)^-1/2,    dE = -a (D^T D)^-1/2 U((D^T D)^-1/2 M)

    and so for E, with M the momentum of the factor's gradient, U(X) the orthogonal matrix next to X, and
    a = 0.2 sqrt(max(m, n)) times the learning rate, as for a dense W.

    Args:
        pairs: Factors D (m, r) and E (r, n).
        lr: Highest learning rate.
        weight_decay: Weight decay of the factors.
    """

    def __init__(self, pairs: Iterable[tuple[Tensor, Tensor]], lr: float, weight_decay: float) -> None:
        self.pairs = list(pairs)
        factors = [factor for pair in self.pairs for factor in pair]
        super().__init__([{"params": factors}], {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update both factors of each product."""
        assert closure is None
        (group,) = self.param_groups
        for D, E in self.pairs:
            of_d, of_e = (self._direction(factor) for factor in (D, E))
            right, left = inverse_root(E @ E.T), inverse_root(D.T @ D)
            steps = orthogonalised(of_d @ right) @ right, left @ orthogonalised(left @ of_e)
            for factor, step in zip((D, E), steps, strict=True):
                factor.mul_(1 - group["lr"] * group["weight_decay"])
                factor.sub_(step, alpha=group["lr"] * 0.2 * max(len(D), E.shape[1]) ** 0.5)

    def _direction(self, factor: Tensor) -> Tensor:
        """The momentum of its gradient, as Nesterov's."""
        assert factor.grad is not None
        momentum: Tensor = self.state[factor].setdefault("momentum_buffer", torch.zeros_like(factor))
        momentum.lerp_(factor.grad, 1 - MOMENTUM)
        return factor.grad.lerp(momentum, MOMENTUM)


def inverse_root(gram: Tensor) -> Tensor:
    """G^-1/2 of a Gram matrix (r, r), damped."""
    values, vectors = torch.linalg.eigh(gram.double())
    values = values.clamp(min=0) + DAMPING * values[-1]
    return ((vectors * values.rsqrt()) @ vectors.T).to(gram.dtype)


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
