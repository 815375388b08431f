"""Dense Synthesizer. Tay 2020, arXiv:2005.00743, eq. 2-3: softmax(W2 relu(W1 x_i + b1) + b2) V, without keys.

W1 and b1 are the query projection, whose heads each have a W2 (D x max_len). In the fast form relu(W1 x + b1) and W2
are queries and keys of dot product attention. Time O(N M D), memory O(N).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers.attention._aligned import finite, finite_queries
from greenformers.attention._contract import Shape, check_lengths
from greenformers.attention._reference import text_by_text
from greenformers.attention._synthesizer import Synthesizer, rows_at, synthesized


@text_by_text
def reference(
    mechanism: "SynthesizerDense",
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M D"],
    key_mask: Bool[Tensor, "B M"] | None = None,
    hidden: Float[Tensor, "B H N D"] | None = None,
) -> Float[Tensor, "B H N D"]:
    """softmax(S) v with S_ij = W2_j relu(x_i) + b2_j, x = W1 X + b1 being `hidden`, or q where there is none."""
    x = (q if hidden is None else hidden).clamp(min=0).transpose(0, 1)[:, :, :, None]  # (H, B, N, 1, D)
    W2, b2 = mechanism.W2, mechanism.b2
    return synthesized(mechanism, q, k, v, key_mask, lambda _, j: (x * W2[:, j]).sum(-1) + b2[:, j])


class SynthesizerDense(Synthesizer):
    """Each position computes its scores for all positions by itself, without keys.

    Args:
        shape: Heads, width, and the length that W2 is made for.
        mixed: Whether scores are mixed with dot products by learned shares; W1 x + b1 is then a projection of its own,
            `hidden`.
        dropout: Probability of dropping an attention weight in training.

    Raises:
        ValueError: An option is out of range.
    """

    def __init__(self, shape: Shape, *, mixed: bool = False, dropout: float = 0.0) -> None:
        super().__init__(shape, mixed=mixed, dropout=dropout, uses=("q", "v"), adds=("hidden",))
        self.W2 = nn.Parameter(torch.empty(shape.heads, shape.max_len, shape.head_dim))
        self.b2 = nn.Parameter(torch.empty(shape.heads, shape.max_len))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw W2 and b2 as a linear layer; set equal shares in a mixture."""
        super().reset_parameters()
        bound = self.shape.head_dim**-0.5
        for parameter in (self.W2, self.b2):
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
        # The bias is one more column of W2, of an input of 1.
        keys = torch.cat([rows_at(self.W2, columns), rows_at(self.b2[..., None], columns)], 3)
        return self.by_products(q, k, v, key_mask, torch.cat([x, torch.ones_like(x[..., :1])], 3), keys)
