"""Training examples whose label is probably wrong, by how a network learns them.

A network learns what most labels agree on before it learns single examples by heart. At T moments of a training, the
logits z_t (C classes) and the input h_t of the last linear layer are observed for every training example; with y the
label an example has, p_t = softmax(z_t) and eta_t the sum of the learning rates of the steps since the moment before:

| score | formula | a wrong label has |
|---|---|---|
| area under the margin | mean over t of z_t[y] - max over c != y of z_t[c] | little |
| confidence | mean over t of p_t[y] | little |
| variability | standard deviation over t of p_t[y] | much, while it is learned by heart |
| forgetting | number of t with y predicted at t - 1, and not at t | much |
| self-influence | sum over t of eta_t abs(g_t)^2, g_t the gradient of the last layer | much |
| influence | sum over t of eta_t g_t . G_t, G_t the mean gradient of trusted examples | little, below 0 |

Observed by networks that were not trained on an example (`folds`), the same scores are those of confident learning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Observed:
    """The last layer of a network at T moments of its training, for n examples.

    Attributes:
        logits: Logits (T, n, C).
        features: Input of the last linear layer (T, n, d), whose output is the logits.
        labels: Label that each example has (n,), 0..C - 1.
        rates: Sum of the learning rates of the steps since the moment before (T,).
    """

    logits: Tensor
    features: Tensor
    labels: Tensor
    rates: Tensor

    def __post_init__(self) -> None:
        moments, count, classes = self.logits.shape
        if not count or classes < 2:
            raise ValueError(f"logits must be of at least 1 example and 2 classes, got {count} and {classes}")
        for name, shape in (("features", (moments, count)), ("labels", (count,)), ("rates", (moments,))):
            value: Tensor = getattr(self, name)
            if tuple(value.shape[: len(shape)]) != shape:
                raise ValueError(f"{name} must begin with {shape}, as the logits do; got {tuple(value.shape)}")
        low, high = self.labels.min().item(), self.labels.max().item()
        if not 0 <= low <= high < classes:
            raise ValueError(f"labels must be in 0..{classes - 1}, got {low}..{high}")


def area_under_margin(logits: Float[Tensor, "T n C"], labels: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Mean over T moments of the logit of the label, minus the greatest other one. Pleiss 2020, arXiv:2001.10528, 2.1.

    Args:
        logits: Logits (T, n, C).
        labels: Label of each example (n,).
    """
    return _margin(logits, labels).mean(0)


def confidence(logits: Float[Tensor, "T n C"], labels: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Mean over T moments of the probability of the label. Swayamdipta 2020, arXiv:2009.10795, 2.

    Args:
        logits: Logits (T, n, C).
        labels: Label of each example (n,).
    """
    return _of_label(logits.softmax(-1), labels).mean(0)


def variability(logits: Float[Tensor, "T n C"], labels: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Standard deviation (of T, not T - 1) of the probability of the label. Swayamdipta 2020, arXiv:2009.10795, 2.

    Args:
        logits: Logits (T, n, C).
        labels: Label of each example (n,).
    """
    return _of_label(logits.softmax(-1), labels).std(0, correction=0)


def forgetting(logits: Float[Tensor, "T n C"], labels: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Number of moments at which the label is no longer predicted. Toneva 2019, arXiv:1812.05159, 2.

    As there, an example that is never predicted counts as forgotten without end: T.

    Args:
        logits: Logits (T, n, C).
        labels: Label of each example (n,).
    """
    right = logits.argmax(-1) == labels  # (T, n)
    events = (right[:-1] & ~right[1:]).sum(0)
    return torch.where(right.any(0), events, len(logits)).to(logits.dtype)


def self_influence(observed: Observed) -> Float[Tensor, " n"]:
    """How much a step on an example lowers its own loss. Pruthi 2020, arXiv:2002.08484, 3.2 and 4.1, the last layer.

    The gradient of the cross-entropy is (p - e_y) [h; 1]^T, with e_y the one-hot label; its square is the product of
    those of the two vectors, so that no gradient is made.
    """
    errors = _errors(observed)  # (T, n, C)
    squares = errors.square().sum(-1) * (observed.features.square().sum(-1) + 1)  # (T, n)
    return observed.rates @ squares


def influence(observed: Observed, trusted: Observed) -> Float[Tensor, " n"]:
    """How much a step on an example lowers the mean loss of trusted ones. Pruthi 2020, arXiv:2002.08484, eq. 1.

    The gradients are those of the last layer, weight and bias.

    Args:
        observed: The training examples.
        trusted: Examples with labels that are right, observed at the same moments of the same training.

    Raises:
        ValueError: The moments are not the same.
    """
    if not torch.equal(observed.rates, trusted.rates):
        raise ValueError(
            f"trusted examples must be observed at the {len(observed.rates)} moments of the others, "
            f"got {len(trusted.rates)} moments"
        )
    gradient = _errors(trusted).mT @ F.pad(trusted.features, (0, 1), value=1.0) / len(trusted.labels)  # (T, C, d + 1)
    along = F.pad(observed.features, (0, 1), value=1.0) @ gradient.mT  # (T, n, C)
    return observed.rates @ (_errors(observed) * along).sum(-1)


def estimated_errors(probabilities: Float[Tensor, "n C"], labels: Int[Tensor, " n"]) -> int:
    """How many labels are wrong, by confident learning. Northcutt 2021, arXiv:1911.00068, eq. 1 and 2, 3.1.

    The threshold of a class is the mean probability of it among the examples that have its label. An example is counted
    for the likeliest of the classes above their thresholds; one counted for another class than its label is wrong. The
    counts of each label are then scaled to the number of its examples.

    Args:
        probabilities: Probability of each class (n, C), by networks that were not trained on the example.
        labels: Label of each example (n,).
    """
    classes = probabilities.shape[1]
    is_label = F.one_hot(labels, classes).to(probabilities.dtype)  # (n, C)
    sizes = is_label.sum(0)  # (C,)
    thresholds = torch.where(sizes > 0, (probabilities * is_label).sum(0) / sizes.clamp(min=1), torch.inf)
    above = probabilities >= thresholds
    counted = above.any(1)
    likeliest = torch.where(above, probabilities, -1.0).argmax(1)
    counts = torch.zeros(classes, classes, dtype=probabilities.dtype)  # (label, likeliest class)
    counts.index_put_((labels[counted], likeliest[counted]), torch.ones(int(counted.sum())).to(counts), accumulate=True)
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
    return round(float((sizes * (counts.sum(1) > 0) - sizes * shares.diagonal()).sum()))


class Score(NamedTuple):
    """A way to tell which labels are suspicious.

    Attributes:
        about: What it is, in a few words.
        of: Function from the examples, and trusted ones or None, to a number for each (n,); the greatest is the most
            suspicious.
    """

    about: str
    of: Callable[[Observed, Observed | None], Tensor]


def _influence(observed: Observed, trusted: Observed | None) -> Tensor:
    if trusted is None:
        raise ValueError("influence needs trusted examples, got none")
    return -influence(observed, trusted)


SCORES: dict[str, Score] = {
    "margin": Score("area under the margin", lambda seen, _: -area_under_margin(seen.logits, seen.labels)),
    "confidence": Score("confidence in the label", lambda seen, _: -confidence(seen.logits, seen.labels)),
    "variability": Score("variability of it", lambda seen, _: variability(seen.logits, seen.labels)),
    "forgetting": Score("times it is forgotten", lambda seen, _: forgetting(seen.logits, seen.labels)),
    "self_influence": Score("influence on itself", lambda seen, _: self_influence(seen)),
    "influence": Score("influence on trusted examples", _influence),
}
"""Scores by name; of all of them a greater one is more suspicious."""


def suspicion(name: str, observed: Observed, trusted: Observed | None = None) -> Float[Tensor, " n"]:
    """A score of every example: the greater, the more suspicious its label.

    Args:
        name: Name in `SCORES`.
        observed: The examples.
        trusted: Examples whose labels are right, which "influence" needs.

    Raises:
        ValueError: There is no such score, or it needs trusted examples.
    """
    if name not in SCORES:
        raise ValueError(f"score must be one of {', '.join(SCORES)}, got {name!r}")
    return SCORES[name].of(observed, trusted)


def precision_at(scores: Tensor, wrong: Tensor, count: int) -> float:
    """Percentage of the `count` most suspicious examples whose label is wrong; with as many wrong ones, the recall too.

    Args:
        scores: Suspicion of each example (n,).
        wrong: Whether its label is wrong (n,).
        count: Number of examples, 1..n.

    Raises:
        ValueError: The count is out of range.
    """
    if not 1 <= count <= len(scores):
        raise ValueError(f"count must be in 1..{len(scores)}, got {count}")
    return 100 * wrong[scores.argsort(descending=True, stable=True)[:count]].double().mean().item()


def recall_at_precision(scores: Tensor, wrong: Tensor, precision: float) -> float:
    """Largest percentage of the wrong labels in a list of the most suspicious, of which so many percent are wrong.

    Args:
        scores: Suspicion of each example (n,).
        wrong: Whether its label is wrong (n,); at least one is.
        precision: Least percentage of such a list that must be wrong, 0..100.

    Raises:
        ValueError: No label is wrong, or the precision is out of range.
    """
    if not 0 <= precision <= 100:
        raise ValueError(f"precision must be in 0..100, got {precision}")
    if not wrong.any():
        raise ValueError("at least one label must be wrong, got none")
    hits = wrong[scores.argsort(descending=True, stable=True)].double().cumsum(0)  # (n,)
    enough = hits / torch.arange(1, len(hits) + 1) >= precision / 100
    return 100 * (hits[enough].max() / hits[-1]).item() if enough.any() else 0.0


def _of_label(values: Tensor, labels: Tensor) -> Tensor:
    """The values (T, n, C) at the label, (T, n)."""
    return values.gather(-1, labels.expand(len(values), -1)[..., None])[..., 0]


def _margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Logit of the label minus the greatest other, (T, n)."""
    other = logits.masked_fill(F.one_hot(labels, logits.shape[-1]).bool(), -torch.inf).amax(-1)
    return _of_label(logits, labels) - other


def _errors(observed: Observed) -> Tensor:
    """Gradient of the cross-entropy by the logits, p - e_y: (T, n, C)."""
    one_hot = F.one_hot(observed.labels, observed.logits.shape[-1])
    return observed.logits.softmax(-1) - one_hot.to(observed.logits.dtype)
