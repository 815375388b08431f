"""Relative positions as vectors. Shaw 2018, arXiv:1803.02155, eq. 3-4: q_i (k_j + a^K_c) / sqrt(D), P (v_j + a^V_c).

c = j - i, cut to -k..k; one a^K and one a^V (2k + 1, D) per layer, for all heads. In the fast form q a^K^T is computed
for the 2k + 1 vectors and read by c, and the weights are summed by c before they meet a^V: time O(N M + N k D), and
never the (N, M, D) of the formula.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from greenformers.position._contract import Place, Position, distances


def reference(
    position: "Shaw", q: Float[Tensor, "B H N D"], k: Float[Tensor, "B H M D"]
) -> tuple[Float[Tensor, "B H N M"], Float[Tensor, "N M D"]]:
    """Scores q_i (k_j + a^K_c) / sqrt(D), and the vectors a^V_c that are added to the values."""
    limit = position.clip
    c = (torch.arange(k.shape[2]) - torch.arange(k.shape[2] - q.shape[2], k.shape[2])[:, None]).clamp(-limit, limit)
    keys = k[:, :, None] + position.keys[c + limit]  # (B, H, N, M, D)
    scores = torch.einsum("bhnd,bhnmd->bhnm", q, keys) / q.shape[3] ** 0.5
    return scores, position.of_values[c + limit]


class Shaw(Position):
    """Vectors of distances, added to keys and to values.

    Args:
        place: Sizes of the network; the width D of a head is read.
        clip: Distance k: all distances from k on share one vector.

    Attributes:
        keys: Vectors a^K (2k + 1, D).
        of_values: Vectors a^V (2k + 1, D).

    Raises:
        ValueError: `clip` is below 1.
    """

    acts = "scores"
    asks_query = True
    has_values = True

    def __init__(self, place: Place, *, clip: int = 16) -> None:
        super().__init__(place)
        if clip < 1:
            raise ValueError(f"clip must be at least 1, got {clip}")
        self.clip = clip
        self.keys, self.of_values = (nn.Parameter(torch.empty(2 * clip + 1, place.head_dim)) for _ in range(2))
        self.reset_parameters(place.head_dim**-0.5)

    def reset_parameters(self, std: float) -> None:  # noqa: D102
        for parameter in (self.keys, self.of_values):
            if not parameter.is_meta:
                nn.init.normal_(parameter, std=std)

    def added(self, q: Float[Tensor, "B H N D"], keys: int) -> Float[Tensor, "B H N M"]:  # noqa: D102
        by_vector = (q @ self.keys.to(q.dtype).T * q.shape[3] ** -0.5).to(_wide(q))  # (B, H, N, 2k + 1)
        return by_vector.gather(3, self._vectors(q.shape[2], keys, q.device).expand(*q.shape[:2], -1, -1)).to(q.dtype)

    def values(self, weights: Float[Tensor, "B H N M"]) -> Float[Tensor, "B H N D"]:  # noqa: D102
        index = self._vectors(weights.shape[2], weights.shape[3], weights.device).expand_as(weights)
        by_vector = weights.new_zeros(*weights.shape[:3], len(self.of_values), dtype=_wide(weights))
        by_vector = by_vector.scatter_add(3, index, weights.to(by_vector.dtype)).to(weights.dtype)
        return by_vector @ self.of_values.to(weights.dtype)

    def _vectors(self, queries: int, keys: int, device: torch.device) -> Int[Tensor, "N M"]:
        """Row of the vectors for each query and key."""
        return (-distances(queries, keys, device)).clamp(-self.clip, self.clip) + self.clip


def _wide(x: Tensor) -> torch.dtype:
    """The type of sums of many numbers: of halves a GPU would round each addition, so that the sum stops growing."""
    return torch.promote_types(x.dtype, torch.float32)
