"""Weights as codes of a codebook, see `greenformers.solve.codebook`."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from greenformers.changes._coded import CodedWeight
from greenformers.changes._int8_linear import fixed
from greenformers.changes._paths import check_keys
from greenformers.solve.codebook import joined

MOST = 256
"""The largest codebook: a code is a byte."""


class Codes(CodedWeight):
    """A weight (m, n) whose vectors of d inputs are entries of a codebook; the codebook can be trained.

    Args:
        m, n: Its size.
        d: Inputs of a vector; the last one of a row may have fewer.
        K: Number of centroids.

    Attributes:
        codes: The centroid of each vector, (m, ceil(n / d)) uint8.
        centroids: (K, d).
    """

    def __init__(self, m: int, n: int, d: int, K: int) -> None:
        super().__init__()
        self.m, self.n = m, n
        # First what is floating point: sentence-transformers takes a network's type from its first parameter.
        self.centroids = nn.Parameter(torch.zeros(K, d))
        self.codes = fixed(torch.zeros(m, -(-n // d), dtype=torch.uint8))

    @classmethod
    def of(cls, codes: Int[Tensor, "m B"], centroids: Float[Tensor, "K d"], n: int) -> "Codes":
        """A weight of n inputs of codes and centroids."""
        held = cls(len(codes), n, centroids.shape[1], len(centroids))
        held.codes = fixed(codes)
        held.centroids = nn.Parameter(centroids.float())
        return held

    @property
    def like(self) -> Tensor:
        """A tensor of the type that the weight has among other weights."""
        return self.centroids

    @property
    def described(self) -> dict[str, Any]:
        """What must be known to place an empty one."""
        K, d = self.centroids.shape
        return {"block": d, "centroids": K}

    @property
    def label(self) -> str:
        """The form, as in "256 centroids of 8"."""
        K, d = self.centroids.shape
        return f"{K} centroids of {d}"

    def rows(self, at: Int[Tensor, "..."] | None = None) -> Float[Tensor, "... n"]:
        """Rows of the weight; by default all."""
        codes: Tensor = self.codes
        values = joined(codes if at is None else codes[at.flatten()], self.centroids, self.n)
        return values if at is None else values.view(*at.shape, self.n)


def checked(path: str, described: Any) -> tuple[int, int]:
    """The inputs of a vector and the number of centroids in a description from an untrusted file.

    Raises:
        ValueError: It is not one.
    """
    check_keys(f"product of {path}", described, ("block", "centroids"))
    d, K = described["block"], described["centroids"]
    if type(d) is not int or not 1 <= d <= 2**16:
        raise ValueError(f"block of {path} must be a whole number of inputs, got {d!r}")
    if type(K) is not int or not 1 <= K <= MOST:
        raise ValueError(f"centroids of {path} must be from 1 to {MOST}, got {K!r}")
    return d, K
