"""What stands after a layer: an exit says what the whole network would say, and how sure it is.

With states h (N, d) of a text after a layer, m their mean over its tokens, and c those of its first token:

    of a classifier   z = V tanh(W [c; m] + b) + a                         logits in place of the network's
    of an encoder     g(h) = h + W h + b, token by token; z = g(m)         states in place of the last layer's

g is affine, so that g(m) is the mean of g(h): to judge a text costs one product with its mean, whatever its length.

How sure an exit is, is a score, of p = softmax(z) and the classes C, or of z' of the exit before:

    confidence   p_1 - p_2, the two largest                                (Schuster 2022, arXiv:2207.07061)
    entropy      1 + sum_i p_i log p_i / log C                             (Xin 2020, arXiv:2004.12993)
    saturation   cos(z, z')                                                (Schuster 2022)
    error        1 - e, e the distance 1 - cos of the two networks' embeddings that exp(u . |z| + v) foretells

with |z| = z / ||z|| at length 1. Before the first exit z' is the mean of the states that enter the stack.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from greenformers.data._pooling import MODES

STD = 0.02
"""Standard deviation of weights as they are drawn."""


@dataclass(frozen=True)
class Rule:
    """When a text leaves.

    Attributes:
        by: Name of the score, a key of `SCORES`.
        threshold: A score above it is sure enough; of 1 or more none is.
        patience: Exits in a row that must be as sure, and of the same class, the last of which the text leaves by.
    """

    by: str
    threshold: float
    patience: int = 1

    def streak(self, before: Tensor, scores: Tensor, same: Tensor) -> Tensor:
        """The exits in a row that are sure and of one class, so far; all (B,).

        Args:
            before: Streaks at the exit before.
            scores: Scores at this exit.
            same: Whether the class is that of the exit before.
        """
        return torch.where(scores > self.threshold, torch.where(same, before + 1, torch.ones_like(before)), 0)


def mean(states: Tensor, mask: Tensor | None) -> Tensor:
    """The mean (B, d) of states (B, N, d) where a mask (B, N) is True; of all without a mask."""
    return states.mean(1) if mask is None else MODES["mean"](states, mask)


class ClassifierExit(nn.Module):
    """Logits of a text from the states of any layer.

    Args:
        width: Width d of the states.
        classes: Number of classes C.
    """

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.hidden, self.logits = nn.Linear(2 * width, width), nn.Linear(width, classes)

    @torch.no_grad()
    def draw(self, source: torch.Generator) -> None:
        """Draw the weights."""
        for layer in (self.hidden, self.logits):
            layer.weight.copy_(STD * torch.randn(layer.weight.shape, generator=source))
            layer.bias.zero_()

    def read(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """What it looks at: (B, N, d) and a mask (B, N), True = keep, None where nothing is padding, to (B, 2 d)."""
        first = states[:, 0] if mask is None else MODES["cls"](states, mask)
        return torch.cat([first, mean(states, mask)], -1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits z (B, C) of what it looks at (B, 2 d)."""
        logits: Tensor = self.logits(self.hidden(x).tanh())
        return logits

    def states(self, states: Tensor) -> Tensor:
        """The states (B, N, d) that a text leaves with: those it has, of which no logits are made."""
        return states

    def classes(self, z: Tensor) -> Tensor:
        """The class of each text (B,)."""
        return z.argmax(-1)


class EncoderExit(nn.Module):
    """States as after the last layer from those of any other.

    Args:
        width: Width d of the states.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.map, self.error = nn.Linear(width, width), nn.Linear(width, 1)

    @torch.no_grad()
    def draw(self, source: torch.Generator) -> None:
        """Begin with the states themselves, g(h) = h."""
        for layer in (self.map, self.error):
            layer.weight.zero_()
            layer.bias.zero_()

    def read(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """What it looks at: (B, N, d) and a mask (B, N), True = keep, None where nothing is padding, to (B, d)."""
        return mean(states, mask)

    def forward(self, x: Tensor) -> Tensor:
        """The map g of states or of their means (..., d)."""
        y: Tensor = x + self.map(x)
        return y

    def states(self, states: Tensor) -> Tensor:
        """The states (B, N, d) that a text leaves with."""
        return self(states)

    def classes(self, z: Tensor) -> Tensor:
        """An encoder tells no classes apart: (B,) of 0."""
        return z.new_zeros(len(z), dtype=torch.long)

    @torch.no_grad()
    def fit_error(self, z: Tensor, distances: Tensor) -> None:
        """Fit u and v to z (n, d) and distances (n,) above 0, by least squares of the logarithms.

        A ridge of d / n of the mean variance of an input stands against chance.
        """
        x, y = F.normalize(z.double(), dim=-1), distances.double().log()
        x_mean, y_mean = x.mean(0), y.mean()
        C = (x - x_mean).T @ (x - x_mean)
        ridge = (len(C) / len(x) * C.diagonal().mean()).clamp(min=torch.finfo(C.dtype).tiny)
        u = torch.linalg.solve(C + ridge * torch.eye(len(C)).to(C), (x - x_mean).T @ (y - y_mean))
        self.error.weight.copy_(u[None])
        self.error.bias.fill_(float(y_mean - u @ x_mean))

    def log_error(self, z: Tensor) -> Tensor:
        """The logarithm of the distance that it foretells, u . |z| + v, (B,)."""
        log_error: Tensor = self.error(F.normalize(z, dim=-1)).squeeze(-1)
        return log_error


Exit = ClassifierExit | EncoderExit


def _confidence(_: Exit, z: Tensor, __: Tensor | None) -> Tensor:
    two = z.float().softmax(-1).topk(2, -1).values
    return two[:, 0] - two[:, 1]


def _entropy(_: Exit, z: Tensor, __: Tensor | None) -> Tensor:
    log_p = z.float().log_softmax(-1)
    return 1 + (log_p.exp() * log_p).sum(-1) / math.log(z.shape[-1])


def _saturation(_: Exit, z: Tensor, before: Tensor | None) -> Tensor:
    assert before is not None
    return F.cosine_similarity(z.float(), before.float(), dim=-1)


def _error(exit_: Exit, z: Tensor, _: Tensor | None) -> Tensor:
    assert isinstance(exit_, EncoderExit)
    return 1 - exit_.log_error(z).float().exp()


SCORES: dict[str, Callable[[Exit, Tensor, Tensor | None], Tensor]] = {
    "confidence": _confidence, "entropy": _entropy, "saturation": _saturation, "error": _error,
}  # fmt: skip
"""Scores (B,) of an exit, from its z (B, m) and that of the exit before; the higher, the surer."""

OF_CLASSIFIERS, OF_ENCODERS = ("confidence", "entropy"), ("error", "saturation")
"""The names of the scores of either kind, the default first."""
