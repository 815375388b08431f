"""Ways to begin, to shrink and to decay the two factors of low-rank layers, for the study of how they are trained."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from greenformers.lowrank.linear import LED


def low_rank_layers(model: nn.Module) -> Iterator[tuple[str, LED]]:
    """The low-rank layers of a network, by name."""
    return ((name, module) for name, module in model.named_modules() if isinstance(module, LED))


@torch.no_grad()
def begin_spectral(model: nn.Module) -> None:
    """Factors of the nearest matrices of that rank to dense ones that are drawn. Khodak 2021, arXiv:2105.01029, 3.1."""
    for _, layer in low_rank_layers(model):
        std = layer.weight.std()
        put(layer, *halves(torch.randn(layer.out_features, layer.in_features) * std, layer.rank))


@torch.no_grad()
def begin_orthogonal(model: nn.Module) -> None:
    """Factors with orthogonal rows and columns, alike in size, whose product has the deviation that it has else."""
    for _, layer in low_rank_layers(model):
        m, n, r = layer.out_features, layer.in_features, layer.rank
        size = (layer.weight.std() * (m * n / r) ** 0.5).sqrt()
        put(layer, size * nn.init.orthogonal_(torch.empty(m, r)), size * nn.init.orthogonal_(torch.empty(r, n)))


def halves(weight: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """D = U sqrt(S) and E = sqrt(S) V^T of the first singular values."""
    U, S, V = torch.linalg.svd(weight, full_matrices=False)
    root = S[:rank].sqrt()
    return U[:, :rank] * root, root[:, None] * V[:rank]


def put(layer: LED, decoder: Tensor, encoder: Tensor) -> None:
    """Set both factors in place."""
    layer.decoder.weight.copy_(decoder)
    layer.encoder.weight.copy_(encoder)


@torch.no_grad()
def decay_products(model: nn.Module, amount: float) -> None:
    """A step down the gradient of |D E|^2 / 2 (Frobenius decay). Khodak 2021, arXiv:2105.01029, 3.2."""
    for _, layer in low_rank_layers(model):
        D, E = layer.decoder.weight, layer.encoder.weight
        of_d, of_e = D @ (E @ E.T), (D.T @ D) @ E
        D.sub_(of_d, alpha=amount)
        E.sub_(of_e, alpha=amount)


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
        state: The optimiser of dense layers, whose averages are carried over; None: the factors begin without.

    Returns:
        What an optimiser knows of the new factors: a gradient G of the weight is G E^T and D^T G for its factors, which
        holds for its average, and for the average of squares where the entries of G are independent.
    """
    carried: dict[Tensor, dict[str, Tensor]] = {}
    for name, rank in ranks.items():
        layer = model.get_submodule(name)
        weight = layer.weight
        assert isinstance(weight, Tensor)
        decoder, encoder = halves(weight, rank)
        bias = layer.bias
        low = LED(weight.shape[1], weight.shape[0], rank, bias=bias is not None)
        put(low, decoder, encoder)
        if isinstance(bias, nn.Parameter):
            low.bias = bias
        if state is not None and weight in state.state:
            known = state.state[weight]
            mean, square = known["exp_avg"], known["exp_avg_sq"]
            carried[low.decoder.weight] = {
                "exp_avg": mean @ encoder.T, "exp_avg_sq": square @ encoder.T**2, "step": known["step"].clone(),
            }  # fmt: skip
            carried[low.encoder.weight] = {
                "exp_avg": decoder.T @ mean, "exp_avg_sq": decoder.T**2 @ square, "step": known["step"].clone(),
            }  # fmt: skip
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, low)
    return carried
