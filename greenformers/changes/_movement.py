"""Movement pruning: weights that training moves towards 0 go, step by step. Sanh 2020, arXiv:2005.07683.

Each weight has a score S; the network computes with W' = M W, where M is 1 at the v weights of the matrix with the
largest scores. Weights and scores are trained together, the latter straight through the choice:

    dL/dW = M dL/dW',  dL/dS = W dL/dW'.

So S falls where a step of gradient descent would bring W nearer to 0. Scores start at 0, but for a term too small to
matter once they move: by it weights that training says nothing of go in the order of their absolute values.

The share v of the weights that stay is 1 in the first tenth of the steps and as asked for in the last fifth; between
them it falls as a cubic, fast at first (Zhu & Gupta 2017, arXiv:1710.01878).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from greenformers.changes._sparse import commit
from greenformers.solve.sparse_sites import prunable
from greenformers.solve.sparsify import count, largest

WARMUP, COOLDOWN = 0.1, 0.2
"""Shares of the steps before the first weight goes, and after the last one has gone."""


TIES = 1e-6
"""Score at the start of the largest weight of a matrix, far below a step of training."""


class Moving(nn.Module):
    """The weight of a layer without those of the least scores, as a parametrization.

    Attributes:
        scores: S, of the shape of the weight.
        share: Share v of the weights that stay by now.
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        size = weight.detach().abs()
        self.scores = nn.Parameter(TIES * size / size.max().clamp(min=torch.finfo(size.dtype).tiny))
        self.share = 1.0

    def mask(self) -> Tensor:
        """M, with exactly the share of ones; of equal scores the first stay."""
        scores = self.scores.detach().flatten()
        return largest(scores, count(self.share, len(scores))).view_as(self.scores)

    def forward(self, weight: Tensor) -> Tensor:
        """M W, and the gradient W dL/dW' of the scores, by a term that is 0."""
        return weight * self.mask() + weight.detach() * (self.scores - self.scores.detach())


def share_at(step: int, steps: int, share: float) -> float:
    """The share of the weights that stay in a step, counted from 0, of so many."""
    start, end = WARMUP * steps, (1 - COOLDOWN) * steps
    done = min(max((step - start) / (end - start), 0.0), 1.0)
    return share + (1 - share) * (1 - done) ** 3


class Schedule(TrainerCallback):
    """Sets the share of the weights that stay before every step."""

    def __init__(self, layers: list[Moving], share: float) -> None:
        self.layers, self.share = layers, share

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        for layer in self.layers:
            layer.share = share_at(state.global_step, state.max_steps, self.share)


@contextmanager
def moving(model: nn.Module, share: float) -> Iterator[Schedule]:
    """A `with` block for training with movement pruning; afterwards the layers are sparse, by errors as before.

    Args:
        model: The network; the layers are those that `prunable` gives.
        share: Share of the weights of each layer that stay.

    Raises:
        ValueError: There is no layer to prune.
    """
    sites, _ = prunable(model)
    layers: list[Any] = [site.module for site in sites]
    moves = [Moving(layer.weight) for layer in layers]
    for layer, move in zip(layers, moves, strict=True):
        parametrize.register_parametrization(layer, "weight", move)
    masks: list[Tensor] = []
    try:
        yield Schedule(moves, share)
        for move in moves:
            move.share = share
        masks = [move.mask() for move in moves]
    finally:
        for layer in layers:
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
    for site, layer, mask in zip(sites, layers, masks, strict=True):
        with torch.no_grad():
            layer.weight.masked_fill_(~mask, 0)
        commit(model, site)
