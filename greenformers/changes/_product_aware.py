"""Training with weights as entries of a codebook, as they will be: Quant-Noise (Fan 2021, arXiv:2004.07320)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from greenformers.changes._coded import codable
from greenformers.changes._straight_through import noise_of, straight_through
from greenformers.model.experts import as_modules
from greenformers.solve.codebook import blocks, joined, kmeans, moved, nearest
from greenformers.solve.walk import Select


@contextmanager
def aware(model: nn.Module, select: Select, d: int, K: int, share: float, seed: int = 0) -> Iterator[None]:
    """A `with` block for training with weights as entries of a codebook; gradients pass as if they were not.

    The codebook follows the weights by a step of k-means at each step of training.
    """
    modules: list[Any] = []
    with as_modules(model):
        for site in codable(model, select):
            coded = _Coded(site.stacked(), d, K, turned=site.turned, share=share, seed=seed)
            for module in {id(module): module for module in map(model.get_submodule, site.paths)}.values():
                parametrize.register_parametrization(module, "weight", coded)
                modules.append(module)
        try:
            yield
        finally:
            for module in modules:
                parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)


class _Coded(nn.Module):
    """A weight as entries of a codebook, as a parametrization.

    Attributes:
        centroids: (K, d), by plain k-means.
    """

    centroids: Tensor

    def __init__(self, W: Tensor, d: int, K: int, *, turned: bool, share: float, seed: int) -> None:
        super().__init__()
        self.d, self.turned, self.share = d, turned, share
        self.register_buffer("centroids", kmeans(blocks(W.float(), d), K, seed=seed))

    def forward(self, weight: Tensor) -> Tensor:
        whole = weight.mT if self.turned else weight
        rows = whole.reshape(-1, whole.shape[-1])  # of all experts, one below the other
        with torch.no_grad():
            w = blocks(rows.float(), self.d)
            codes = nearest(w, self.centroids)
            if self.training:
                self.centroids.copy_(moved(w, codes, self.centroids))
            rounded = joined(codes, self.centroids, rows.shape[1]).to(rows.dtype)
        rows = straight_through(rows, rounded, noise_of(rows, self.share, self.training, self.d))
        rows = rows.view_as(whole)
        return rows.mT if self.turned else rows
