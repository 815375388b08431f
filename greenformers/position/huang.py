"""Relative positions of the Music Transformer. Huang 2018, arXiv:1809.04281, 3.4: (q k^T + skew(q E^T)) / sqrt(D).

E has a vector for each head and distance, those beyond the longest one clipped. Skewing reads q E^T, computed for all
distances, row by row: memory O(L D) for vectors where a gathered E would have O(L^2 D). Time O(N M D).
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from greenformers.position._contract import Place, Position, distances, falling


def reference(position: "Huang", q: Float[Tensor, "B H N D"], k: Float[Tensor, "B H M D"]) -> Float[Tensor, "B H N M"]:
    """Scores q_i (k_j + E_{i-j}) / sqrt(D), with a vector gathered for each pair."""
    E = position.E[:, position.row(distances(q.shape[2], k.shape[2]))]  # (H, N, M, D)
    return (q @ k.mT + torch.einsum("bhnd,hnmd->bhnm", q, E)) / q.shape[3] ** 0.5


class Huang(Position):
    """Vectors of distances for each head, whose products with the queries are added to the scores.

    Args:
        place: Heads and their width, and whether they are causal: else distances have two sides.
        longest: Number L of distances with a vector of their own: distances from L - 1 on share one; by default the
            length of the longest sequence.

    Attributes:
        E: (H, L, D) of distances 0 to L - 1 where causal; else (H, 2L - 1, D), of 1 - L to L - 1.

    Raises:
        ValueError: Longest is below 1.
    """

    acts = "scores"
    asks_query = True

    def __init__(self, place: Place, *, longest: int | None = None) -> None:
        super().__init__(place)
        self.longest = place.max_len if longest is None else longest
        if self.longest < 1:
            raise ValueError(f"longest must be at least 1, got {self.longest}")
        rows = self.longest if place.causal else 2 * self.longest - 1
        self.E = nn.Parameter(torch.empty(place.heads, rows, place.head_dim))
        self.reset_parameters(place.head_dim**-0.5)

    def reset_parameters(self, std: float) -> None:  # noqa: D102
        if not self.E.is_meta:
            nn.init.normal_(self.E, std=std)

    def row(self, distance: Tensor) -> Tensor:
        """Row of E for a distance i - j."""
        last = self.longest - 1
        return distance.clamp(0, last) if self.place.causal else distance.clamp(-last, last) + last

    def of_distances(self, falling: Int[Tensor, " t"]) -> tuple[Float[Tensor, "H t D"], None]:  # noqa: D102
        return self.E[:, self.row(falling)], None

    def added(self, q: Float[Tensor, "B H N D"], keys: int) -> Float[Tensor, "B H N M"]:  # noqa: D102
        N = q.shape[2]
        products = (
            q @ self.E[:, self.row(falling(N, keys, q.device, causal=False))].to(q.dtype).mT * q.shape[3] ** -0.5
        )  # (B, H, N, M + N - 1)
        # Row i begins at distance M - N + i, which stands at N - 1 - i: rows one shorter than they are.
        T = products.shape[3]
        return products if T == 1 else products.flatten(2)[:, :, N - 1 :].unfold(2, keys, T - 1)
