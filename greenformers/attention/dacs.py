"""DACS. Li 2020, arXiv:2011.13834, eq. 5-8: attention that reads keys in order and stops when its weights sum to 1.

a_ij = sigmoid(s q_i k_j), s = 1 / sqrt(D); n_i is the first n with a_i1 + ... + a_in >= 1, or the last key;
out_i = a_i1 v_1 + ... + a_in v_n. Keys after n_i are not needed: a decoder can start before its input ends.
Synchronous (Li 2021, arXiv:2104.12631): all heads of a layer stop at the first n at which the mean of their sums is 1.
The fast form reads keys in blocks until all queries of a tile have stopped (`_halting.py`); exported programs compute
all weights.
Time O(N n D) with n the most keys that a query reads, memory O((N + M) D).
"""

from itertools import product

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from greenformers.attention._aligned import finite, first_of, text_of
from greenformers.attention._contract import Attention, Shape, check_fit, exact, full_precision
from greenformers.attention._halting import in_blocks, read_until, stops
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
    N, M, L = q.shape[2], k.shape[2], mechanism.limited
    if query_mask is None and N == M and not mechanism.shape.cross:
        query_mask = key_mask
    a = torch.where(seen_keys(mechanism, q, k, key_mask), torch.sigmoid(dot_products(q, k)), 0.0)
    sums = a.mean(1, keepdim=True).expand_as(a) if mechanism.synchronous else a
    rows = []
    for b, h in product(range(q.shape[0]), range(q.shape[1])):
        last = 0  # where the query before stopped
        for i in range(N):
            limit = M if L is None else min(M, last + L)
            enough = int((sums[b, h, i].cumsum(0) < mechanism.threshold).sum()) + 1
            stop = min(enough, limit)
            rows.append(a[b, h, i, :stop] @ v[b, h, :stop])
            last = stop if query_mask is None or query_mask[b, i] else limit  # a masked query has no stop of its own
    return torch.stack(rows).view(q.shape)


class Dacs(Attention):
    """Weights that are not normalised. For the cross-attention of a decoder, or causal.

    Args:
        shape: Heads, width and length.
        threshold: Sum of its weights at which a query stops reading.
        synchronous: Whether all heads stop as one.
        look_ahead: Largest number of keys a query reads beyond the key where the query before it stopped, or, for the
            first kept query, from the first kept key on; None: no limit.
        limit: When `look_ahead` holds: "always", or in "inference" alone, as in the paper.
        dropout: Probability of dropping an attention weight in training.

    Raises:
        ValueError: An option is out of range, or of no effect.
    """

    queries_apart = True
    takes_rotation = True

    def __init__(
        self,
        shape: Shape,
        *,
        threshold: float = 1.0,
        synchronous: bool = False,
        look_ahead: int | None = None,
        limit: str = "always",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(shape)
        if not threshold > 0:
            raise ValueError(f"threshold must be above 0, got {threshold}")
        if look_ahead is not None and look_ahead < 1:
            raise ValueError(f"look_ahead must be at least 1, got {look_ahead}")
        if limit not in ("always", "inference"):
            raise ValueError(f"limit must be always or inference, got {limit!r}")
        if look_ahead is None and limit != "always":
            raise ValueError("limit says when look_ahead holds: give one")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        self.threshold, self.synchronous, self.look_ahead = threshold, synchronous, look_ahead
        self.limit, self.dropout = limit, dropout
        if look_ahead is not None:  # a query depends on those before it
            self.queries_apart = self.continues = False

    @property
    def limited(self) -> int | None:
        """The look-ahead that holds now."""
        return None if self.training and self.limit == "inference" else self.look_ahead

    def forward(  # noqa: D102
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B H N D"]:
        return self._read(q, k, v, key_mask, query_mask)[0]

    @torch.no_grad()
    def stops(
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
    ) -> Int[Tensor, "B H N"]:
        """The number n_i of keys up to which each query reads, 0 where `query_mask` leaves it out."""
        return self._read(q, k, k, key_mask, query_mask)[1]

    def _read(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None
    ) -> tuple[Float[Tensor, "B H N D"], Int[Tensor, "B H N"]]:
        check_fit(q, k, v, key_mask, self.shape, query_mask)
        q, k, v = finite(q, k, v, key_mask, query_mask, cross=self.shape.cross)
        M = k.shape[2]
        limit = self._most(q, M, key_mask, query_mask)
        queries, keys, values = (exact(x).flatten(0, 1) for x in (q * q.shape[3] ** -0.5, k, v))
        keep = None if key_mask is None else key_mask[:, None].expand(k.shape[:3]).flatten(0, 1)
        together = self.shape.heads if self.synchronous else 1
        with full_precision(q):
            if not in_blocks(q, M):
                out, stop = self._at_once(queries, keys, values, limit, keep, key_mask, query_mask)
                return out.view(q.shape).to(v.dtype), stop
            if self.limited is not None:
                steps = self._steps(q, k, key_mask, query_mask)
                limit = torch.minimum(limit, (steps + self.limited).clamp(min=0))
                stop = stops(
                    queries, keys, limit.flatten(0, 1), keep, threshold=self.threshold, together=together
                ).view(limit.shape)
                limit = torch.minimum(limit, self._within(stop, steps, M, key_mask, query_mask))
            out, stop = read_until(
                queries, keys, values, limit.flatten(0, 1), keep, threshold=self.threshold, together=together,
                dropout=self.dropout if self.training else 0.0,
            )  # fmt: skip
        return out.view(q.shape).to(v.dtype), stop.view(q.shape[:3])

    def _most(self, q: Tensor, M: int, key_mask: Tensor | None, query_mask: Tensor | None) -> Int[Tensor, "B H N"]:
        """Most keys that each query reads: up to its own position and the last kept one; none if it is left out."""
        N = q.shape[2]
        most = torch.arange(1, N + 1, device=q.device) + M - N if self.shape.causal else q.new_full((N,), M).long()
        if key_mask is not None and M:
            last = (key_mask * torch.arange(1, M + 1, device=q.device)).amax(1)
            most = torch.minimum(most, last[:, None])[:, None]  # (B, 1, N)
        if query_mask is not None:
            most = most * query_mask[:, None]
        return most.expand(q.shape[:3])

    def _at_once(
        self, q: Tensor, k: Tensor, v: Tensor, limit: Tensor, keep: Tensor | None, key_mask: Tensor | None,
        query_mask: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """All weights at once, where what is computed must not depend on values."""
        shape, M = limit.shape, k.shape[1]
        places = torch.arange(M, device=q.device)
        a = torch.sigmoid(q @ k.mT) * (places < limit.flatten(0, 1)[..., None])
        if keep is not None:
            a = a.masked_fill(~keep[:, None], 0.0)
        # Sum over the keys before: the key with which the sum reaches the threshold is read too.
        before = F.pad(a.detach().cumsum(-1)[..., :-1], (1, 0)).view(*shape, M)
        if self.synchronous:
            before = before.mean(1, keepdim=True)
        stop = torch.minimum((before < self.threshold).sum(-1).expand(shape), limit)
        if self.limited is not None:
            steps = self._steps(q.view(*shape, -1), k.view(*shape[:2], M, -1), key_mask, query_mask)
            stop = torch.minimum(stop, (steps + self.limited).clamp(min=0))
            stop = torch.minimum(stop, self._within(stop, steps, M, key_mask, query_mask))
        weights = a * (places < stop.flatten(0, 1)[..., None])
        return F.dropout(weights, self.dropout, self.training) @ v, stop

    def _steps(self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None) -> Int[Tensor, "b 1 N"]:
        """Where each query would begin to read if all before it had read as far as they may."""
        N, M = q.shape[2], k.shape[2]
        apart = not self.shape.causal and (self.shape.cross or N != M)
        text = text_of(key_mask, query_mask, cross=apart)
        none = torch.zeros(1, dtype=torch.long, device=q.device)
        key = none if text is None else first_of(text)
        if apart:
            query = none if query_mask is None else first_of(query_mask)
        else:
            query = none if text is None else (key - (M - N)).clamp(min=0)
        assert self.limited is not None
        i = torch.arange(N, device=q.device)
        return self.limited * (i - query[:, None, None]) + key[:, None, None]

    def _within(
        self, stop: Tensor, steps: Tensor, M: int, key_mask: Tensor | None, query_mask: Tensor | None
    ) -> Int[Tensor, "B H N"]:
        """The limit: n_i <= min of n_h + (i - h) L over the queries h <= i of the text."""
        if query_mask is None and key_mask is not None and stop.shape[2] == M and not self.shape.cross:
            query_mask = key_mask
        if query_mask is not None:  # a masked query has no stop of its own
            stop = stop.masked_fill(~query_mask[:, None], M)
        assert self.limited is not None
        return (stop - steps).cummin(-1).values.clamp(max=self.limited) + steps
