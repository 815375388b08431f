"""Ways to train low-rank layers W = D E, with D (m, r) and E (r, n), beside that of all other layers.

    spectral     D E starts as the nearest matrix of rank r to a dense weight as it would be drawn, and decays as a
                 product: D <- D - a D E E^T and E <- E - a D^T D E, the gradient of |D E|^2 / 2 in each factor.
                 Khodak 2021, arXiv:2105.01029
    dense_first  a dense W is trained for a share of the steps; D E starts as the nearest matrix of rank r to it.
                 Wang 2021, arXiv:2103.03936

The nearest matrix of rank r to W = U S V^T is D E with D = U_r S_r^1/2 and E = S_r^1/2 V_r^T.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from greenformers._tensors import save_file
from greenformers.lowrank.experts import ExpertsLED
from greenformers.lowrank.factorize import factorize
from greenformers.lowrank.linear import LED, HeadLED
from greenformers.train.checkpoint import MANIFEST
from greenformers.train.state import MODEL, OPTIMIZER

WAYS = ("spectral", "dense_first")
"""Names of the ways, which start with weights of their own."""

DENSE_SHARE = 0.25
"""Share of the steps in which layers are dense, of "dense_first"."""


def is_low_rank(model: nn.Module) -> bool:
    """Whether a network has low-rank layers."""
    return any(isinstance(module, LED | HeadLED | ExpertsLED) for module in model.modules())


def check(model: nn.Module, way: str | None, steps: int) -> None:
    """Check that a network can be trained in one of the ways, and that the way has an effect.

    Args:
        model: The network.
        way: One of `WAYS`; None: as all other layers.
        steps: Steps of the whole training.

    Raises:
        ValueError: The network has no low-rank layers, or the way is not for its kind of them or for so few steps.
    """
    if way is None:
        return
    if not is_low_rank(model):
        raise ValueError(f"low_rank_training {way} is for low-rank layers, and {type(model).__name__} has none")
    if any(isinstance(module, HeadLED) for module in model.modules()):
        raise ValueError(f"rank_per_head must be off with low_rank_training {way}, which is for two factors a layer")
    if way == "dense_first":
        dense_steps(steps)


def dense_steps(steps: int) -> int:
    """Number of steps in which layers are dense, at least 1 and less than all.

    Args:
        steps: Steps of the whole training.

    Raises:
        ValueError: There are fewer than 2 steps.
    """
    if steps < 2:
        raise ValueError(f"steps must be at least 2 with low_rank_training dense_first, got {steps}")
    return max(1, round(DENSE_SHARE * steps))


def factors(model: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
    """The factors D (m, r) and E (r, n) of each low-rank layer, by its name; those of experts have a dimension before.

    Factors that several layers share come once, and those of single heads (`HeadLED`) not at all.
    """
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    seen: set[int] = set()
    for name, module in model.named_modules():
        if isinstance(module, LED):
            pair = module.decoder.weight, module.encoder.weight
        elif isinstance(module, ExpertsLED):
            pair = module.decoders.weight, module.encoders.weight
        else:
            continue
        if id(pair[0]) not in seen:
            seen.add(id(pair[0]))
            pairs[name] = pair
    return pairs


def nearest(weight: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Factors D (..., m, r) and E (..., r, n) of the nearest matrices of this rank to weights (..., m, n).

    Each column of D has the norm of its row of E.
    """
    if weight.dim() == 2:
        truncated = factorize(weight, rank)
        return truncated.decoder, truncated.encoder
    parts = [nearest(matrix, rank) for matrix in weight]
    return torch.stack([decoder for decoder, _ in parts]), torch.stack([encoder for _, encoder in parts])


@torch.no_grad()
def begin_spectral(model: nn.Module, source: torch.Generator | None = None) -> None:
    """Let low-rank layers start as the nearest matrices of their rank to dense weights that are drawn.

    Khodak 2021, arXiv:2105.01029, 3.1. The dense weights vary as the products do that the factors have had before.

    Args:
        model: The network, changed in place.
        source: Generator that the dense weights are drawn from, on the CPU; None for torch's own.
    """
    for D, E in factors(model).values():
        std = (D @ E).std().item()
        weight = torch.randn(*D.shape[:-1], E.shape[-1], generator=source) * std
        for factor, start in zip((D, E), nearest(weight, E.shape[-2]), strict=True):
            factor.copy_(start)


@torch.no_grad()
def decay_products(model: nn.Module, amount: float) -> None:
    """A step down the gradient of |D E|^2 / 2, for every low-rank layer. Khodak 2021, arXiv:2105.01029, 3.2.

    Args:
        model: The network, changed in place.
        amount: Size of the step: learning rate times weight decay.
    """
    for D, E in factors(model).values():
        of_d, of_e = D @ (E @ E.mT), (D.mT @ D) @ E
        D.sub_(of_d, alpha=amount)
        E.sub_(of_e, alpha=amount)


def carried(kind: str, state: Tensor, decoder: Tensor, encoder: Tensor) -> tuple[Tensor, Tensor]:
    """What an optimiser knows of a dense weight, as what it knows of its factors D and E.

    A gradient G of the weight is G E^T for D and D^T G for E. So it is for its average; and for the average S of
    squares it is S (E^T)^2 and (D^T)^2 S, where the entries of G are independent.

    Args:
        kind: Name of the entry in the state of AdamW or Muon: exp_avg, exp_avg_sq, momentum_buffer or step.
        state: Its value, (..., m, n), or the number of steps.
        decoder: The factor D (..., m, r).
        encoder: The factor E (..., r, n).
    """
    if kind == "step":
        return state.clone(), state.clone()
    if kind == "exp_avg_sq":
        decoder, encoder = decoder.square(), encoder.square()
    return state @ encoder.mT, decoder.mT @ state


def low_rank_state(
    tensors: Mapping[str, Tensor], moments: Mapping[str, Tensor], model: nn.Module
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights and optimiser state of a dense network as those of the low-rank network of the same sizes.

    Args:
        tensors: The result of `state.weights` for the dense network.
        moments: The result of `state.optimizer_state` for it.
        model: The low-rank network.
    """
    weights, states = dict(tensors), dict(moments)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for layer, pair in factors(model).items():
        dense, own = f"{layer}.weight", [names[id(factor)] for factor in pair]
        decoder, encoder = nearest(weights.pop(dense), pair[1].shape[-2])
        weights |= zip(own, (decoder, encoder), strict=True)
        for key in [key for key in states if key.startswith(f"{dense}/")]:
            kind = key.rpartition("/")[2]
            both = carried(kind, states.pop(key), decoder, encoder)
            states |= {f"{name}/{kind}": state for name, state in zip(own, both, strict=True)}
    return weights, states


def low_rank_checkpoint(source: Path, model: nn.Module) -> Callable[[Path], None]:
    """A function that writes the files of a dense network's checkpoint as those of the low-rank network.

    Args:
        source: Checkpoint of the dense network.
        model: The low-rank network of the same sizes.
    """

    def fill(folder: Path) -> None:
        tensors, moments = low_rank_state(load_file(source / MODEL), load_file(source / OPTIMIZER), model)
        save_file(tensors, folder / MODEL, metadata={"format": "pt"})
        save_file(moments, folder / OPTIMIZER)
        for file in source.iterdir():
            if file.name not in (MODEL, OPTIMIZER, MANIFEST):
                shutil.copyfile(file, folder / file.name)

    return fill
