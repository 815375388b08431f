"""Linear Transformer. Katharopoulos 2020, arXiv:2006.16236, eq. 7: attention with phi(x) = elu(x) + 1 in place of exp.

The fast form sums phi(k_j) v_j^T first, chunk by chunk (`_kernelized.py`).
Time and memory O(N D^2) and O(N D); causal with a state of D (D + 1) numbers a head for decoding.
"""

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from greenformers.attention._aligned import is_traced
from greenformers.attention._contract import Shape
from greenformers.attention._feature_map import Exponential, FeatureMap
from greenformers.attention._kernelized import Kernelized
from greenformers.attention._reference import seen_keys, weighted_mean

FeatureMapName = Literal["elu", "exp"]


def reference(
    mechanism: "LinearTransformer",
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M D"],
    key_mask: Bool[Tensor, "B M"] | None = None,
) -> Float[Tensor, "B H N D"]:
    """sum_j phi(q_i) phi(k_j) v_j / sum_j phi(q_i) phi(k_j), eq. 4."""

    def phi(x: Tensor) -> Tensor:
        return x.exp() if mechanism.feature_map == "exp" else torch.where(x > 0, x + 1, x.exp())

    return weighted_mean(phi(q) @ phi(k).mT, v, seen_keys(mechanism, q, k, key_mask))


class LinearTransformer(Kernelized):
    """Attention with weights phi(q) phi(k) over their sum.

    Args:
        shape: Heads, width and length.
        feature_map: Feature map phi: "elu" is elu(x) + 1, "exp" is exp(x).
        chunk: Number of positions taken at a time; the output does not depend on it. By default as many as fit a cache.

    Raises:
        ValueError: An option is out of range.
    """

    def __init__(self, shape: Shape, *, feature_map: FeatureMapName = "elu", chunk: int | None = None) -> None:
        super().__init__(shape, chunk=chunk)
        if feature_map not in get_args(FeatureMapName):
            raise ValueError(f"feature_map must be one of {', '.join(get_args(FeatureMapName))}; got {feature_map!r}")
        self.feature_map = feature_map

    @property
    def phi(self) -> FeatureMap:  # noqa: D102
        width = self.shape.head_dim
        return Elu(width) if self.feature_map == "elu" else Exponential(width)


class Elu:
    """phi(x) = elu(x) + 1 = exp(min(x, 0)) + max(x, 0), in a form that loses no precision where x is far below 0."""

    has_shifts = False

    def __init__(self, width: int) -> None:
        self.width = width

    def queries(self, x: Tensor) -> Tensor:  # noqa: D102
        if torch.is_grad_enabled() or is_traced(x):
            return x.clamp(max=0).exp() + x.relu()
        # The derivative of elu at x, exp(x) or 1, times max(x, 0) + 1: three passes over one tensor, by a faster exp.
        phi: Tensor = x.relu().add_(1)
        return torch.ops.aten.elu_backward.grad_input(phi, 1, 1, 1, False, x, grad_input=phi)

    def keys(self, x: Tensor) -> tuple[Tensor, None]:  # noqa: D102
        return self.queries(x), None

    def of_queries(self, x: Tensor, phi: Tensor, grad: Tensor) -> Tensor:  # noqa: D102
        return phi.clamp(max=1).mul_(grad)

    of_keys = of_queries
