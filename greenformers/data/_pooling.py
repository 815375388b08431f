"""One vector for a text from the states of its tokens, as in sentence encoders. Reimers 2019, arXiv:1908.10084.

With states h_1 .. h_n of the tokens that are not padding, under the names that sentence-transformers gives the modes:

    cls h_1, lasttoken h_n, max max_i h_i, mean sum_i h_i / n, mean_sqrt_len_tokens sum_i h_i / sqrt(n),
    weightedmean sum_i i h_i / sum_i i

The vectors of several modes are concatenated in the order in which they are named; layers may follow.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ATTACHED = "_sentence_pooling"
"""The attribute of a model that holds its pooling."""


def _first(hidden: Tensor, keep: Tensor) -> Tensor:
    return hidden[torch.arange(len(hidden), device=hidden.device), keep.int().argmax(1)]


def _last(hidden: Tensor, keep: Tensor) -> Tensor:
    return hidden[torch.arange(len(hidden), device=hidden.device), hidden.shape[1] - 1 - keep.int().flip(1).argmax(1)]


def _max(hidden: Tensor, keep: Tensor) -> Tensor:
    return hidden.masked_fill(keep[..., None] == 0, float("-inf")).amax(1)


def _mean(hidden: Tensor, keep: Tensor) -> Tensor:
    weight = keep.to(hidden.dtype)[..., None]
    return (hidden * weight).sum(1) / weight.sum(1).clamp_min(1)


def _mean_by_root(hidden: Tensor, keep: Tensor) -> Tensor:
    weight = keep.to(hidden.dtype)[..., None]
    return (hidden * weight).sum(1) / weight.sum(1).clamp_min(1).sqrt()


def _weighted(hidden: Tensor, keep: Tensor) -> Tensor:
    weight = (keep * keep.cumsum(1)).to(hidden.dtype)[..., None]  # 1, 2, .. from the first token on
    return (hidden * weight).sum(1) / weight.sum(1).clamp_min(1)


MODES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": _first, "max": _max, "mean": _mean, "mean_sqrt_len_tokens": _mean_by_root, "weightedmean": _weighted,
    "lasttoken": _last,
}  # fmt: skip
"""From states (B, N, d) and a mask (B, N), 1 = keep, to (B, d)."""


@dataclass(frozen=True, eq=False)
class Dense:
    """x -> f(W x + b), plus the input or a projection of it where there is a residual connection.

    Attributes:
        weight: Weight W (m, d).
        bias: Bias b (m,), if any.
        activation: Activation f.
        residual: None for no residual connection; a projection (m, d); "input" for the input itself.
    """

    weight: Tensor
    bias: Tensor | None
    activation: nn.Module
    residual: Any = None

    def __call__(self, x: Tensor) -> Tensor:
        """(B, d) -> (B, m)."""
        y = self.activation(F.linear(x, self.weight.to(x), None if self.bias is None else self.bias.to(x)))
        if self.residual is None:
            return y
        return y + (x if isinstance(self.residual, str) else F.linear(x, self.residual.to(x)))


@dataclass(frozen=True, eq=False)
class LayerNorm:
    """Layer normalisation of the vector, with a gain (d,) and a bias (d,)."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """(B, d) -> (B, d)."""
        return F.layer_norm(x, self.weight.shape, self.weight.to(x), self.bias.to(x))


@dataclass(frozen=True)
class Normalize:
    """Normalisation of the vector to length 1: x / |x|."""

    def __call__(self, x: Tensor) -> Tensor:
        """(B, d) -> (B, d)."""
        return F.normalize(x, dim=-1)


Layer = Dense | LayerNorm | Normalize


@dataclass(frozen=True, eq=False)
class SentencePooling:
    """Pooling of a model's last hidden states into the embedding of a text.

    Attributes:
        modes: Modes of pooling, names in `MODES`.
        layers: Layers that follow, in order.
        length: Longest text, in tokens, that the makers of the model give it; None where they say nothing.
        folder: The folder of sentence-transformers that it was read from, if any.
        in_memory: Whether it comes from a SentenceTransformer object, which may be in no folder.
    """

    modes: tuple[str, ...] = ("mean",)
    layers: tuple[Layer, ...] = ()
    length: int | None = None
    folder: Path | None = None
    in_memory: bool = False

    def __call__(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """States (B, N, d) and a mask (B, N), 1 = keep, to embeddings (B, m)."""
        keep = hidden.new_ones(hidden.shape[:2], dtype=torch.long) if mask is None else mask
        x = torch.cat([MODES[mode](hidden, keep) for mode in self.modes], -1)
        for layer in self.layers:
            x = layer(x)
        return x


MEAN = SentencePooling()


def attach(model: nn.Module, pooling: SentencePooling) -> None:
    """Give a model the pooling by which it is judged, calibrated and healed; copies of the model keep it."""
    setattr(model, ATTACHED, pooling)


def pooling_of(model: nn.Module) -> SentencePooling:
    """The pooling attached to a model; the mean, where none is."""
    return getattr(model, ATTACHED, MEAN)
