"""Factorized Random Synthesizer. Tay 2020, arXiv:2005.00743, eq. 7: softmax(R1 R2^T) V, the same for every input.

In the fast form R1 and R2 are queries and keys of dot product attention. Time O(N M (r + D)), memory O(N).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers.attention._aligned import finite
from greenformers.attention._contract import Shape, check_lengths
from greenformers.attention._reference import text_by_text
from greenformers.attention._synthesizer import Synthesizer, rows_at, synthesized


@text_by_text
def reference(
    mechanism: "SynthesizerFactorizedRandom",
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M D"],
    key_mask: Bool[Tensor, "B M"] | None = None,
) -> Float[Tensor, "B H N D"]:
    """softmax(R1 R2^T) v: the score of position i for position j is R1_i R2_j."""
    R1, R2 = mechanism.R1, mechanism.R2
    return synthesized(mechanism, q, k, v, key_mask, lambda i, j: (R1[:, i] * R2[:, j]).sum(-1))


class SynthesizerFactorizedRandom(Synthesizer):
    """Scores of pairs of positions are learned, or random, as a product of matrices of rank r.

    Args:
        shape: Heads, and the length that R1 and R2 are made for.
        rank: Rank r, at most `max_len`; by default 8, or `max_len` where that is shorter.
        trained: Whether R1 and R2 are learned; False: they stay as drawn.
        mixed: Whether scores are mixed with dot products by learned shares.
        dropout: Probability of dropping an attention weight in training.

    Raises:
        ValueError: An option is out of range.
    """

    rank_option = "rank"

    R1: Tensor
    R2: Tensor

    def __init__(
        self,
        shape: Shape,
        *,
        rank: int | None = None,
        trained: bool = True,
        mixed: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(shape, mixed=mixed, dropout=dropout, uses=("v",))
        rank = min(8, shape.max_len) if rank is None else rank
        if not 1 <= rank <= shape.max_len:
            raise ValueError(f"rank must be in 1..{shape.max_len} (the longest sequence), got {rank}")
        for name in ("R1", "R2"):
            factor = torch.empty(shape.heads, shape.max_len, rank)
            if trained:
                self.register_parameter(name, nn.Parameter(factor))
            else:
                self.register_buffer(name, factor)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw R1 and R2, normal, so that R1 R2^T has variance 1; set equal shares in a mixture."""
        super().reset_parameters()
        for factor in (self.R1, self.R2):
            nn.init.normal_(factor, std=factor.shape[2] ** -0.25)

    def forward(  # noqa: D102
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B H N D"]:
        check_lengths(q, k, v, key_mask, self.shape, query_mask)
        q, k, v = finite(q, k, v, key_mask, query_mask, cross=self.shape.cross)
        rows, columns = self.places(q.shape[2], k.shape[2], key_mask, query_mask)
        return self.by_products(q, k, v, key_mask, rows_at(self.R1, rows), rows_at(self.R2, columns))
