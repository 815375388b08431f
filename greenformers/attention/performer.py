"""Performer. Choromanski 2020, arXiv:2009.14794: softmax attention by p positive orthogonal random features (FAVOR+).

phi(x) = exp(w x / D^1/4 - |x|^2 / (2 sqrt(D))) for p random rows w: E phi(q) phi(k) = exp(q k / sqrt(D)) (lemma 1).
The fast form sums phi(k_j) v_j^T first (`_kernelized.py`), and each key's features are divided by their largest.
Time O(N p D), memory O(N D); causal with a state of p (D + 1) numbers a head for decoding.
"""

import math
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers._initial import set_
from greenformers.attention._contract import Shape, accurate, drawn_by
from greenformers.attention._feature_map import Exponential, FeatureMap
from greenformers.attention._kernelized import Kernelized
from greenformers.attention._reference import seen_keys, weighted_mean

RELU_LEAST = 1e-3
"""Constant added to each ReLU feature, so that no sum of weights is 0."""

Kernel = Literal["softmax", "hyperbolic", "relu"]


def reference(
    mechanism: "Performer",
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M D"],
    key_mask: Bool[Tensor, "B M"] | None = None,
) -> Float[Tensor, "B H N D"]:
    """sum_j phi(q_i) phi(k_j) v_j / sum_j phi(q_i) phi(k_j), eq. 5."""
    weights = features(mechanism, q) @ features(mechanism, k).mT
    return weighted_mean(weights, v, seen_keys(mechanism, q, k, key_mask))


def features(mechanism: "Performer", x: Float[Tensor, "... D"]) -> Float[Tensor, "... p"]:
    """phi(x) with the rows w of the mechanism; "hyperbolic": with w and -w."""
    w, x = mechanism.rows, x / x.shape[-1] ** 0.25
    if mechanism.kernel == "relu":
        return (x @ w.mT).clamp(min=0) + RELU_LEAST
    if mechanism.kernel == "hyperbolic":
        w = torch.cat([w, -w])
    return torch.exp(x @ w.mT - x.square().sum(-1, keepdim=True) / 2) / math.sqrt(len(w))


class Performer(Kernelized):
    """Attention with weights phi(q) phi(k) over their sum, which tends to softmax attention as p grows.

    Args:
        shape: Heads, width and length.
        features: Number p of features, even for "hyperbolic". By default the multiple of D nearest to D log(D) (section
            4.1), or one more where it must be even.
        kernel: Kernel to estimate. "softmax"; "hyperbolic": p / 2 rows w and as many -w, of less variance (lemma 1);
            "relu": phi(x) = max(w x / D^1/4, 0) + 1e-3, which is no estimate of softmax attention (4.2).
        orthogonal: Whether rows are orthogonal, D at a time, which reduces the variance (theorem 2).
        redraw: Number of training steps after which `update_` draws new rows (section 4.2); None: never. A small
            network loses 0.28 nats a byte at a draw, most of it for some 200 steps (docs/studies/language-models.md):
            training should not end on one.
        seed: Seed of the rows, with the layer.
        chunk: Number of positions taken at a time; the output does not depend on it. By default as many as fit a cache.

    Raises:
        ValueError: An option is out of range.
    """

    rank_option = "features"
    takes_rotation = True

    rows: Tensor
    steps: Tensor

    def __init__(
        self,
        shape: Shape,
        *,
        features: int | None = None,
        kernel: Kernel = "softmax",
        orthogonal: bool = True,
        redraw: int | None = None,
        seed: int = 0,
        chunk: int | None = None,
    ) -> None:
        super().__init__(shape, chunk=chunk)
        dim = shape.head_dim
        if features is None:
            features = dim * max(1, round(math.log(dim)))
            features += features % 2 if kernel == "hyperbolic" else 0
        if kernel not in get_args(Kernel):
            raise ValueError(f"kernel must be one of {', '.join(get_args(Kernel))}; got {kernel!r}")
        if features < 1 or (kernel == "hyperbolic" and features % 2):
            raise ValueError(f"features must be at least 1, and even for 'hyperbolic', got {features}")
        if redraw is not None and redraw < 1:
            raise ValueError(f"redraw must be at least 1 step, got {redraw}")
        self.features, self.kernel, self.orthogonal, self.redraw = features, kernel, orthogonal, redraw
        self.seed = seed
        self.register_buffer("rows", torch.empty(features // 2 if kernel == "hyperbolic" else features, dim))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.reset_parameters()

    @property
    def phi(self) -> FeatureMap:  # noqa: D102
        scale, rows = self.shape.head_dim**-0.25, self.rows.to(accurate(self.rows))
        if self.kernel == "relu":
            return Relu(self.features, scale * rows)
        if self.kernel == "hyperbolic":
            rows = torch.cat([rows, -rows])
        return Exponential(self.features, rows, scale)

    def reset_parameters(self) -> None:
        """Draw the rows of the first step."""
        if not self.rows.is_meta:
            set_(self.rows, self._drawn(0))
            nn.init.zeros_(self.steps)

    @torch.no_grad()
    def update_(self) -> None:
        """Draw new rows after every `redraw` steps; to be called once a training step.

        They depend on seed, layer and step alone, so that all processes of a training draw the same.
        """
        self.steps += 1
        if self.redraw is not None and int(self.steps) % self.redraw == 0:
            self.rows.copy_(self._drawn(int(self.steps)))

    def _drawn(self, step: int) -> Tensor:
        """Normal rows (p, D) of a training step, orthogonal within each D of them."""
        count, dim = self.rows.shape
        generator = drawn_by(self.seed, self.shape, step)
        drawn = torch.randn(count, dim, generator=generator, dtype=torch.float64)
        if not self.orthogonal:
            return drawn
        # Directions from the orthogonal factors of D x D normal matrices, lengths those of independent rows.
        blocks = torch.randn(-(-count // dim), dim, dim, generator=generator, dtype=torch.float64)
        q, r = torch.linalg.qr(blocks)
        q = (
            q * r.diagonal(dim1=1, dim2=2).sign()[:, None]
        )  # otherwise the signs come from the algorithm, and are not random
        return q.mT.flatten(0, 1)[:count] * drawn.norm(dim=1, keepdim=True)


class Relu:
    """phi(x) = max(w x, 0) + 1e-3 for the rows w of a matrix (F, D)."""

    has_shifts = False

    def __init__(self, width: int, rows: Tensor) -> None:
        self.width, self.rows = width, rows

    def queries(self, x: Tensor) -> Tensor:  # noqa: D102
        return (x @ self.rows.mT).relu() + RELU_LEAST

    def keys(self, x: Tensor) -> tuple[Tensor, None]:  # noqa: D102
        return self.queries(x), None

    def of_queries(self, x: Tensor, phi: Tensor, grad: Tensor) -> Tensor:  # noqa: D102
        return (grad * (phi > RELU_LEAST)) @ self.rows

    of_keys = of_queries
