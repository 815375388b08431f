"""Dense attention. Vaswani 2017, arXiv:1706.03762, eq. 1: softmax(Q K^T / sqrt(D)) V.

Time O(N M D). Memory O(N), but O(N M) for the mask where `causal` meets a key mask or M > N.
"""

from jaxtyping import Bool, Float
from torch import Tensor

from greenformers.attention._contract import Attention, Shape, check_lengths
from greenformers.attention._dense import dense_attention


class Full(Attention):
    """Dense softmax attention through torch's scaled_dot_product_attention.

    Args:
        shape: heads, width and length.
        dropout: probability of dropping an attention weight in training. On the CPU torch then builds
            the whole N x M matrix.

    Raises:
        ValueError: `dropout` is not in [0, 1).
    """

    queries_apart = True
    only_masks = True

    def __init__(self, shape: Shape, *, dropout: float = 0.0) -> None:
        super().__init__(shape)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        self.dropout = dropout

    def forward(  # noqa: D102
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B H N D"]:
        check_lengths(q, k, v, key_mask, self.shape)
        dropout = self.dropout if self.training else 0.0
        return dense_attention(q, k, v, key_mask, causal=self.shape.causal, dropout=dropout)
