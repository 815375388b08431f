"""Factorized Dense Synthesizer. Tay 2020, arXiv:2005.00743, eq. 5-6: scores A_i[j mod a] B_i[j // a], without keys.

A_i (a) and B_i (b) are two projections of relu(W1 x_i + b1), W1 and b1 the query projection; a b >= max_len.
The fast form computes the scores of all a b positions and takes those of the keys. Time and memory O(N M).
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers.attention._aligned import finite, finite_queries
from greenformers.attention._contract import Shape, check_lengths
from greenformers.attention._reference import text_by_text
from greenformers.attention._synthesizer import Synthesizer, synthesized


@text_by_text
def reference(
    mechanism: "SynthesizerFactorizedDense",
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M D"],
    key_mask: Bool[Tensor, "B M"] | None = None,
    hidden: Float[Tensor, "B H N D"] | None = None,
) -> Float[Tensor, "B H N D"]:
    """softmax(S) v with S_ij = A_i[j mod a] B_i[floor(j / a)], A = W_A relu(x) + b_A, B likewise, x `hidden` or q."""
    x, a = (q if hidden is None else hidden).clamp(min=0), math.ceil(math.sqrt(mechanism.shape.max_len))
    A, B = ((x @ W + b).transpose(0, 1) for W, b in ((mechanism.W_A, mechanism.b_A), (mechanism.W_B, mechanism.b_B)))

    def score(_: Tensor, j: Tensor) -> Tensor:
        j = j.expand(*A.shape[:3], -1)
        return A.gather(3, j % a) * B.gather(3, j // a)

    return synthesized(mechanism, q, k, v, key_mask, score)


class SynthesizerFactorizedDense(Synthesizer):
    """Each position computes its scores for all positions by itself, as products of entries of two short vectors.

    Args:
        shape: Heads, width, and the length that a = ceil(sqrt(max_len)) and b = ceil(max_len / a) are made for.
        mixed: Whether scores are mixed with dot products by learned shares; W1 x + b1 is then a projection of its own,
            `hidden`.
        dropout: Probability of dropping an attention weight in training.

    Raises:
        ValueError: An option is out of range.
    """

    def __init__(self, shape: Shape, *, mixed: bool = False, dropout: float = 0.0) -> None:
        super().__init__(shape, mixed=mixed, dropout=dropout, uses=("q", "v"), adds=("hidden",))
        a = math.isqrt(shape.max_len - 1) + 1
        b = -(-shape.max_len // a)
        self.W_A, self.W_B = (nn.Parameter(torch.empty(shape.heads, shape.head_dim, size)) for size in (a, b))
        self.b_A, self.b_B = (nn.Parameter(torch.empty(shape.heads, 1, size)) for size in (a, b))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw both projections as linear layers; set equal shares in a mixture."""
        super().reset_parameters()
        bound = self.shape.head_dim**-0.5
        for parameter in (self.W_A, self.b_A, self.W_B, self.b_B):
            nn.init.uniform_(parameter, -bound, bound)

    def forward(  # noqa: D102
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
        hidden: Float[Tensor, "B H N D"] | None = None,
    ) -> Float[Tensor, "B H N D"]:
        check_lengths(q, k, v, key_mask, self.shape, query_mask)
        q, k, v = finite(q, k, v, key_mask, query_mask, cross=self.shape.cross)
        _, columns = self.places(q.shape[2], k.shape[2], key_mask, query_mask)
        if hidden is not None:
            hidden = finite_queries(hidden, key_mask, query_mask, cross=self.shape.cross)
        x = (q if hidden is None else hidden).relu()
        rows = -(-k.shape[2] // self.W_A.shape[2])  # of b, as many as hold the positions of these keys
        A, B = x @ self.W_A + self.b_A, x @ self.W_B[..., :rows] + self.b_B[..., :rows]
        scores = (B[..., :, None] * A[..., None, :]).flatten(3)  # (B, H, N, b a), position j at (j // a, j mod a)
        if isinstance(columns, slice):
            scores = scores[..., columns]
        else:
            scores = scores.gather(3, columns[:, None, None].expand(*scores.shape[:3], -1))
        return self.by_scores(q, k, v, key_mask, scores)
