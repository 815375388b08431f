"""Dense attention. Vaswani 2017, arXiv:1706.03762, eq. 1: softmax(Q K^T / sqrt(D)) V.

The fast form is torch's kernel, which never holds the N x M matrix. Time O(N M D). Memory O(N), but O(N M) for the mask
where `causal` meets a key mask or M > N.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from greenformers.attention._aligned import finite, is_compiled
from greenformers.attention._by_distance import by_distance, without_keys
from greenformers.attention._contract import Attention, Shape, check_fit, on_gpu
from greenformers.attention._dense import attention_weights, dense_attention, of_groups
from greenformers.attention._flex import LEAST_WIDTH, flex_by_distance
from greenformers.attention._reference import dot_products, seen_keys, weighted_mean
from greenformers.attention._relative_tiles import FEW, in_tiles
from greenformers.position import Position, falling


def reference(
    mechanism: "Full",
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M D"],
    key_mask: Bool[Tensor, "B M"] | None = None,
) -> Float[Tensor, "B H N D"]:
    """softmax(q k^T / sqrt(D)) v, over the keys a query sees."""
    keys = q if mechanism.shares_qk and q.shape == k.shape else k
    return weighted_mean(dot_products(q, keys).exp(), v, seen_keys(mechanism, q, k, key_mask))


class Full(Attention):
    """Dense softmax attention through torch's scaled_dot_product_attention.

    Args:
        shape: Heads, width and length.
        dropout: Probability of dropping an attention weight in training. On the CPU torch then builds
            the whole N x M matrix.
        shared_qk: Whether keys are the queries, with no projection of their own. Kitaev 2020, arXiv:2001.04451, section
            2.

    Raises:
        ValueError: `dropout` is not in [0, 1), or queries and keys are shared across two sequences.
    """

    queries_apart = True
    only_masks = True
    takes_pairs = True
    takes_rotation = True
    adds_to_scores = "all"

    last_shares_keys = True

    def __init__(self, shape: Shape, *, dropout: float = 0.0, shared_qk: bool = False) -> None:
        super().__init__(shape)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        if shared_qk and shape.cross:
            raise ValueError("shared_qk must be False where queries and keys come from different sequences")
        self.dropout = dropout
        if shared_qk:
            self.projections, self.shares_qk = ("q", "v"), True

    def forward(  # noqa: D102
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
        relative: Position | None = None,
        pairs: Tensor | None = None,
    ) -> Float[Tensor, "B H N D"]:
        check_fit(q, k, v, key_mask, self.shape, query_mask)
        q, k, v = finite(q, k, v, key_mask, query_mask, cross=self.shape.cross)
        if self.shares_qk and q.shape == k.shape:  # with a cache there are more keys than queries
            k = q
        dropout = self.dropout if self.training else 0.0
        causal, visible, bias = self.shape.causal and pairs is None, None, None
        if pairs is not None:
            (batch, heads, queries, _), keys = q.shape, k.shape[2]
            if tuple(pairs.shape) not in [(batch, rows, queries, keys) for rows in (1, heads)]:
                expected = f"({batch}, 1 or {heads}, {queries}, {keys})"
                raise ValueError(f"pairs must be {expected}, got {tuple(pairs.shape)}")
            visible = pairs if pairs.dtype == torch.bool else pairs > torch.finfo(pairs.dtype).min / 2
            bias = None if pairs.dtype == torch.bool else pairs.to(q.dtype).masked_fill(~visible, 0.0)
        if relative is not None and self._by_distance(q, k, relative, pairs):
            vectors, bias = relative.of_distances(falling(q.shape[2], k.shape[2], q.device, causal=self.shape.causal))
            if on_gpu(q) and q.shape[3] >= LEAST_WIDTH and not dropout and not is_compiled():
                return self._by_flex(q, k, v, key_mask, vectors, bias)
            out = by_distance(
                q, k, v, key_mask, vectors=vectors, bias=bias, causal=self.shape.causal, dropout=dropout
            )  # fmt: skip
            none = None if key_mask is None else without_keys(key_mask, q.shape[2], causal=self.shape.causal)
            return out if none is None else out.masked_fill(none, 0.0)
        if relative is not None:
            added = relative.added(q, k.shape[2])
            bias = added if bias is None else bias + added
        if relative is None or not relative.has_values:
            return dense_attention(q, k, v, key_mask, causal=causal, visible=visible, bias=bias, dropout=dropout)
        if visible is not None:
            raise ValueError("pairs are not for positions that mix values by distances")
        weights = attention_weights(q, k, key_mask, causal=causal, bias=bias)
        weights = F.dropout(weights, dropout)
        return weights @ v + relative.values(weights)

    def _by_distance(self, q: Tensor, k: Tensor, relative: Position, pairs: Tensor | None) -> bool:
        """Whether scores by distance are computed for some pairs at a time."""
        at_once = relative.has_values or pairs is not None or not in_tiles(q, k.shape[2])
        return not at_once and q.shape[2] > FEW

    def _by_flex(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, vectors: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        q = q * q.shape[3] ** -0.5

        def biases(rows: slice, some: slice) -> Tensor:
            of_vectors = None if vectors is None else q[:, :, rows] @ vectors[:, some].to(q.dtype).mT
            of_distances = None if bias is None else bias[None, :, None, some].to(q.dtype)
            both = [part for part in (of_vectors, of_distances) if part is not None]
            return sum(both[1:], both[0])

        return flex_by_distance(q, k, v, key_mask, biases, causal=self.shape.causal)

    def last(  # noqa: D102
        self,
        q: Float[Tensor, "B H 1 D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
    ) -> Float[Tensor, "B H 1 D"]:
        return of_groups(q, k, v, key_mask)

    @property
    def last_shares_masked(self) -> bool:  # noqa: D102
        return True
