"""A static encoder: one vector for each token, and the mean of them for a text. There is no network.

With x_s the shares of the tokens in text s, and y_s what a teacher gives to it, of unit length and in d' directions,
the vectors E (V, d') are learned by least squares, from a beginning E_0 that they keep where texts say nothing:

    sum_s |x_s E - y_s|^2 + r |E - E_0|^2

The beginning is what the teacher gives to each token alone, in these directions, times a / (a + p), p the share of the
token in the texts (Arora 2017, "A simple but tough-to-beat baseline for sentence embeddings", eq. 3, as model2vec has
it), and times the one number that fits the texts best.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

A = 1e-4
"""The a of the weights a / (a + p)."""


@dataclass(frozen=True)
class Bags:
    """Texts as bags of tokens.

    Attributes:
        ids: Tokens of all texts, one after the other.
        starts: Place of the first token of each text (S,).
        counts: Number of tokens of each text (S,).
        vocabulary: Number V of tokens.
    """

    ids: Tensor
    starts: Tensor
    counts: Tensor
    vocabulary: int

    @classmethod
    def of(cls, texts: Sequence[Sequence[int]], vocabulary: int) -> "Bags":
        """The bags of texts as tokens."""
        counts = torch.tensor([len(text) for text in texts])
        ids = torch.tensor([token for text in texts for token in text], dtype=torch.long)
        return cls(ids, counts.cumsum(0) - counts, counts, vocabulary)

    def shares(self) -> Tensor:
        """The share of each token in all texts (V,), float64; one that is in none counts as one more."""
        counts = torch.bincount(self.ids, minlength=self.vocabulary).double() + 1
        return counts / counts.sum()

    def means(self, E: Tensor) -> Tensor:
        """The mean vector of each text: X E (S, d'), for vectors E (V, d'); 0 for a text without tokens."""
        return F.embedding_bag(self.ids, E, self.starts, mode="mean")

    def spread(self) -> Callable[[Tensor], Tensor]:
        """The function from rows R (S, d') to X^T R (V, d')."""
        order = self.ids.argsort(stable=True)
        texts = torch.repeat_interleave(torch.arange(len(self.counts)), self.counts)[order]
        weights = 1 / self.counts[texts].float()
        each = torch.bincount(self.ids, minlength=self.vocabulary)
        starts = each.cumsum(0) - each

        def of(R: Tensor) -> Tensor:
            return F.embedding_bag(texts, R, starts, mode="sum", per_sample_weights=weights.to(R.dtype))

        return of


def directions(Y: Tensor, dims: int) -> tuple[Tensor, float]:
    """The directions (d, d') in which vectors (S, d) have most of their energy, and the share of it in them.

    Raises:
        ValueError: The vectors are not finite.
    """
    if not Y.isfinite().all():
        raise ValueError("what the teacher gives to the texts is not finite")
    energy, vectors = torch.linalg.eigh((Y.T @ Y).double())
    energy = energy.flip(0).clamp(min=0)
    return vectors.flip(1)[:, :dims].float(), (energy[:dims].sum() / energy.sum()).item()


def beginning(rows: Tensor, bags: Bags, Y: Tensor, a: float = A) -> Tensor:
    """The beginning E_0 (V, d') from what the teacher gives to each token alone (V, d'), for targets Y (S, d')."""
    E = rows * (a / (a + bags.shares())).to(rows)[:, None]
    means = bags.means(E)
    return E * ((means * Y).sum() / means.square().sum().clamp(min=torch.finfo(E.dtype).tiny))


def least_squares(
    bags: Bags, Y: Tensor, E_0: Tensor, ridge: float, *, steps: int = 40, begin: Tensor | None = None,
    progress: Callable[[float], None] = lambda _: None,
) -> Tensor:  # fmt: skip
    """The vectors E (V, d') of the texts, by conjugate gradients.

    Args:
        bags: The texts.
        Y: What the teacher gives to them (S, d').
        E_0: The beginning.
        ridge: The weight r of the beginning.
        steps: Most steps; fewer where the residual has fallen to a 10,000th.
        begin: Vectors from which the steps begin; by default E_0.
        progress: Function that is called with the share of the steps that is done.
    """
    spread = bags.spread()
    E = (E_0 if begin is None else begin).clone()
    R = spread(Y - bags.means(E)) + ridge * (E_0 - E)
    P, squared = R.clone(), R.square().sum()
    least = squared * 1e-8
    for step in range(steps):
        if not squared > least:
            break
        AP = spread(bags.means(P)) + ridge * P
        rate = squared / (P * AP).sum()
        E += rate * P
        R -= rate * AP
        before, squared = squared, R.square().sum()
        P = R + squared / before * P
        progress((step + 1) / steps)
    return E


def alike(bags: Bags, E: Tensor, Y: Tensor) -> float:
    """The mean cosine between what the vectors and the teacher give to texts."""
    return F.cosine_similarity(bags.means(E), Y, dim=1).mean().item()
