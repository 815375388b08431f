"""DACS. Li 2020, arXiv:2011.13834, eq. 5-8: attention that reads keys in order and stops when its weights sum to 1.

a_ij = sigmoid(s q_i k_j), s = 1 / sqrt(D); n_i is the first n with a_i1 + ... + a_in >= 1, or the last key;
out_i = a_i1 v_1 + ... + a_in v_n. Keys after n_i are not needed: a decoder can start before its input ends.
The fast form finds all n_i at once, by sums over all keys and a running minimum of the limits.
Time O(N M D), memory O(N M).
"""

from itertools import product

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from greenformers.attention._aligned import finite, first_of, text_of
from greenformers.attention._contract import Attention, Shape, accurate, check_fit
from greenformers.attention._reference import dot_products, seen_keys, text_by_text


@text_by_text
def reference(
    mechanism: "Dacs",
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M D"],
    key_mask: Bool[Tensor, "B M"] | None = None,
    query_mask: Bool[Tensor, "B N"] | None = None,
) -> Float[Tensor, "B H N D"]:
    """a_i1 v_1 + ... + a_in v_n query by query, each reading keys up to its limit n."""
    N, M, L = q.shape[2], k.shape[2], mechanism.look_ahead
    if query_mask is None and N == M and not mechanism.shape.cross:
        query_mask = key_mask
    a = torch.where(seen_keys(mechanism, q, k, key_mask), torch.sigmoid(dot_products(q, k)), 0.0)
    rows = []
    for b, h in product(range(q.shape[0]), range(q.shape[1])):
        last = 0  # where the query before stopped
        for i in range(N):
            limit = M if L is None else min(M, last + L)
            enough = int((a[b, h, i].cumsum(0) < 1).sum()) + 1
            stop = min(enough, limit)
            rows.append(a[b, h, i, :stop] @ v[b, h, :stop])
            last = stop if query_mask is None or query_mask[b, i] else limit  # a masked query has no stop of its own
    return torch.stack(rows).view(q.shape)


class Dacs(Attention):
    """Weights that are not normalised: their sum is between 0 and 2. For the cross-attention of a decoder, or causal.

    Args:
        shape: Heads, width and length.
        look_ahead: Largest number of keys a query reads beyond the key where the query before it stopped, or, for the
            first kept query, from the first kept key on; None: no limit.
        dropout: Probability of dropping an attention weight in training.

    Raises:
        ValueError: An option is out of range.
    """

    queries_apart = True
    takes_rotation = True

    def __init__(self, shape: Shape, *, look_ahead: int | None = None, dropout: float = 0.0) -> None:
        super().__init__(shape)
        if look_ahead is not None and look_ahead < 1:
            raise ValueError(f"look_ahead must be at least 1, got {look_ahead}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        self.look_ahead, self.dropout = look_ahead, dropout
        if look_ahead is not None:  # a query depends on those before it
            self.queries_apart = False

    def forward(  # noqa: D102
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B H N D"]:
        check_fit(q, k, v, key_mask, self.shape)
        q, k, v = finite(q, k, v, key_mask, query_mask, cross=self.shape.cross)
        N, M = q.shape[2], k.shape[2]
        a = torch.sigmoid((q @ k.mT).to(accurate(q)) * q.shape[3] ** -0.5)
        if key_mask is not None:
            a = a.masked_fill(~key_mask[:, None, None], 0.0)
        if self.shape.causal:
            a = a.tril(M - N)
        # Sum over the keys before: the key with which the sum reaches 1 is read too.
        before = a.detach().cumsum(-1).roll(1, -1)
        before[..., 0] = 0
        read = before < 1
        if self.look_ahead is not None:
            kept_queries = query_mask
            if kept_queries is None and N == M and not self.shape.cross:
                kept_queries = key_mask
            read = read & self._within(read, kept_queries, *self._firsts(N, M, key_mask, query_mask))
        weights = (a * read).to(q.dtype)
        weights = F.dropout(weights, self.dropout, self.training)
        return weights @ v

    def _firsts(
        self, N: int, M: int, key_mask: Tensor | None, query_mask: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """The first kept key and query of each example, (B,) or None for 0."""
        apart = not self.shape.causal and (self.shape.cross or N != M)
        text = text_of(key_mask, query_mask, cross=apart)
        key = None if text is None else first_of(text)
        if apart:
            return key, None if query_mask is None else first_of(query_mask)
        return key, None if key is None else (key - (M - N)).clamp(min=0)

    def _within(
        self, read: Tensor, kept_queries: Tensor | None, first_key: Tensor | None, first_query: Tensor | None
    ) -> Tensor:
        """The keys within the limit (B, H, N, M): n_i <= min of n_h + (i - h) L over the queries h <= i of the text."""
        assert self.look_ahead is not None
        stop = read.sum(-1)  # (B, H, N)
        if kept_queries is not None:  # a masked query has no stop of its own
            stop = stop.masked_fill(~kept_queries[:, None], read.shape[3])
        i, j = (torch.arange(n, device=read.device) for n in read.shape[2:])
        i = i if first_query is None else i - first_query[:, None, None]  # (B, 1, N)
        steps = self.look_ahead * i + (0 if first_key is None else first_key[:, None, None])
        limit = (stop - steps).cummin(-1).values.clamp(max=self.look_ahead) + steps
        return j < limit[..., None]
