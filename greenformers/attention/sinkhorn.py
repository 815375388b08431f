"""Sinkhorn attention. Tay 2020, arXiv:2002.11296: blocks of keys are sorted softly, and a block attends its match.

R_i = W_2 relu(W_1 X_i), one number for each block, X_i the sum over block i (the sorting network, section 3.1; of keys,
for each head, where the paper sums the inputs of the layer, of which they are a linear map); P = Sinkhorn((R + Gumbel
noise) / T), rows and columns of exp normalised in turn; block i's queries attend their own keys and P's mixture of all
blocks, sum_j P_ij K_j, position by position (3.2). SortCut (3.3): all queries attend the first n sorted blocks.
Time O(N b D + N^2 D / b), memory O(N (b + D)), with blocks of b.

Causal: X_i is the sum of the keys before block i, which is matched with blocks before it alone; rows are normalised and
columns are not, as a column is read by later blocks.

Blocks are counted from the first kept position of a text.

The fast form takes logarithms of P, and mixes the blocks of a few heads at a time (`_sorted_blocks.py`).
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers.attention._aligned import finite_queries, first_of, left_padding, moved, taken, text_of
from greenformers.attention._contract import (
    Attention,
    Shape,
    accurate,
    check_fit,
    check_lengths,
    exact,
    full_precision,
)  # fmt: skip
from greenformers.attention._reference import dot_products, text_by_text, weighted_mean
from greenformers.attention._sorted_blocks import attend_sorted

NETWORK, PRODUCTS = "network", "products"
"""What sorts blocks: the sorting network, or products of sums of queries and of keys."""

LEAST = 1e-9
"""Share of kept keys below which a position of a mixture counts as padding: its square is not 0 in float32."""


@text_by_text
def reference(
    mechanism: "Sinkhorn",
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M D"],
    key_mask: Bool[Tensor, "B M"] | None = None,
    query_mask: Bool[Tensor, "B N"] | None = None,
) -> Float[Tensor, "B H N D"]:
    """Softmax attention to the keys of the own block and of its match, sum_j P_ij k_j position by position.

    Only the kept share of a position of the match counts: the mixture is divided by it, its weight multiplied by it.
    """
    N, M, size = q.shape[2], k.shape[2], mechanism.block
    keep = torch.ones(q.shape[0], M, dtype=torch.bool) if key_mask is None else key_mask
    asks = keep if query_mask is None else query_mask
    blocks, end = math.ceil(M / size), -M % size

    def cut(x: Tensor) -> Tensor:  # (..., M, D) to (..., n, b, D)
        return F.pad(x, (0, 0, M - x.shape[-2], end)).unflatten(-2, (blocks, size))

    there = cut(keep[:, None, :, None].to(q.dtype))  # (B, 1, n, b, 1), as `asking`
    queries, keys, values = cut(q), cut(k) * there, cut(v) * there
    if mechanism.shape.causal:
        P = _earlier(mechanism, keys, there)
    else:
        asking = cut(asks[:, None, :, None].to(q.dtype))
        P = _doubly(mechanism, queries * asking, asking, keys, there)
    total = P.sum(-1)[..., None, None]  # (B, H, n, 1, 1)
    share = torch.einsum("bhij,bhjpd->bhipd", P, there.expand(-1, q.shape[1], -1, -1, -1))
    read = share > 0
    part = torch.where(read, share / torch.where(total > 0, total, 1.0), 1.0)
    keys_, values_ = (torch.einsum("bhij,bhjpd->bhipd", P, x) / part for x in (keys, values))
    if mechanism.cut is not None:
        some = [x[:, :, : mechanism.cut].flatten(2, 3) for x in (keys_, values_, part, read)]
        weights = dot_products(q, some[0]).exp() * some[2].mT
        return weighted_mean(weights, some[1], some[3].mT)
    seen = there[..., 0][..., None, :] > 0
    if mechanism.shape.causal:
        seen = seen & torch.ones(size, size, dtype=torch.bool).tril()
    weights = torch.cat([dot_products(queries, keys).exp(), dot_products(queries, keys_).exp() * part.mT], -1)
    seen = torch.cat(torch.broadcast_tensors(seen, read.mT), -1)
    return weighted_mean(weights, torch.cat([values, values_], -2), seen).flatten(2, 3)[:, :, M - N : M]


def _doubly(mechanism: "Sinkhorn", q: Tensor, asking: Tensor, k: Tensor, there: Tensor) -> Float[Tensor, "B H n n"]:
    """P: exp(R / T) of the blocks with kept positions, rows and columns divided by their sums in turn."""
    gone = asking.sum((3, 4))[..., None] * there.sum((3, 4))[..., None, :] == 0  # (B, 1, n, n)
    if mechanism.sort == NETWORK:
        P = _of_network(mechanism, k.sum(3)).masked_fill(gone, 0.0)
    else:
        P = _exponentials(mechanism, q.sum(3), asking.sum(3), k.sum(3), there.sum(3)).masked_fill(gone, 0.0)
    for _ in range(mechanism.iterations):
        for dim in (3, 2):
            total = P.sum(dim, keepdim=True)
            P = P / torch.where(total > 0, total, 1.0)
    return P


def _earlier(mechanism: "Sinkhorn", k: Tensor, there: Tensor) -> Float[Tensor, "B H n n"]:
    """P: exp(R / T) of the keys before block i and of the blocks j < i, rows divided by their sums."""
    blocks = k.shape[2]
    earlier = torch.ones(blocks, blocks, dtype=k.dtype).tril(-1)
    sums, counts = k.sum(3), there.sum(3)  # (B, H, n, D), (B, 1, n, 1)
    if mechanism.sort == NETWORK:
        P = _of_network(mechanism, earlier @ sums)
    else:
        P = _exponentials(mechanism, earlier @ sums, earlier @ counts, sums, counts)
    P = P * earlier * (counts.mT > 0)
    total = P.sum(3, keepdim=True)
    return P / torch.where(total > 0, total, 1.0)


def _of_network(mechanism: "Sinkhorn", X: Float[Tensor, "B H n D"]) -> Float[Tensor, "B H n n"]:
    """exp(R / T), R = W_2 relu(W_1 X)."""
    R = torch.relu(X @ mechanism.W_1) @ mechanism.W_2
    return torch.exp(R[..., : X.shape[2]] / mechanism.temperature)


def _exponentials(mechanism: "Sinkhorn", q: Tensor, asked: Tensor, k: Tensor, held: Tensor) -> Tensor:
    """exp(R / T), R the product of sums over blocks, divided by the root of the number of products in it."""
    R = q @ k.mT / (asked * held.mT * q.shape[3]).clamp(min=1).sqrt()
    return torch.exp(R / mechanism.temperature)


class Sinkhorn(Attention):
    """Attention to the own block and to the mixture of blocks matched with it.

    Args:
        shape: Heads, width and length.
        block: Number b of positions of a block.
        cut: Number n of blocks of SortCut; None: no SortCut.
        sort: What sorts the blocks: "network", for texts of at most `max_len`; or "products" of the sum of a block's
            queries and of each block's keys, divided by the root of the number of products in it.
        iterations: Number of normalisations of rows and columns.
        temperature: Temperature T.
        noise: Whether Gumbel noise is added in training.
        dropout: Probability of dropping an attention weight in training.

    Raises:
        ValueError: The attention is cross-attention or causal SortCut, or an option is out of range.
    """

    bounded = True

    def __init__(
        self,
        shape: Shape,
        *,
        block: int = 64,
        cut: int | None = None,
        sort: str = NETWORK,
        iterations: int = 7,
        temperature: float = 0.75,
        noise: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(shape)
        if shape.cross:
            raise ValueError("sinkhorn has no cross-attention: a query has no own block in another sequence")
        if cut is not None and shape.causal:
            raise ValueError("sinkhorn has no causal form with cut: all queries see the same blocks")
        for name, value in (("block", block), ("iterations", iterations), ("cut", 1 if cut is None else cut)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if sort not in (NETWORK, PRODUCTS):
            raise ValueError(f"sort must be {NETWORK} or {PRODUCTS}, got {sort!r}")
        if not temperature > 0:
            raise ValueError(f"temperature must be above 0, got {temperature}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        self.block, self.cut, self.iterations, self.temperature = block, cut, iterations, temperature
        self.sort, self.noise, self.dropout = sort, noise, dropout
        self.bounded = sort == NETWORK
        if self.bounded:
            H, D = shape.heads, shape.head_dim
            self.W_1 = nn.Parameter(torch.empty(H, D, D))
            self.W_2 = nn.Parameter(torch.empty(H, D, -(-shape.max_len // block)))
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the sorting network, for sums over blocks of keys of unit variance."""
        if self.sort == NETWORK:
            D = self.shape.head_dim
            nn.init.normal_(self.W_1, std=(D * self.block) ** -0.5)
            nn.init.normal_(self.W_2, std=(2 / D) ** 0.5)

    def forward(  # noqa: D102
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B H N D"]:
        check = check_lengths if self.bounded else check_fit
        check(q, k, v, key_mask, self.shape, query_mask)
        N, M = q.shape[2], k.shape[2]
        if N != M and not self.shape.causal:
            raise ValueError(f"there must be as many queries as keys, got {N} and {M}")
        q = finite_queries(q, key_mask, query_mask)
        shift = left_padding(text_of(key_mask, query_mask), self.block if self.cut is None else 0)
        if key_mask is None or shift is None:
            return self._from_the_front(q, k, v, key_mask, query_mask)
        # The queries are the last positions, with room in front of them for the largest shift.
        room = min(M - N, self.block - 1)
        at = torch.arange(N + room, device=q.device) - room + shift[:, None]
        at = at % N if N == M else at.clamp(0, N - 1)
        q, query_mask = taken(q, at), None if query_mask is None else taken(query_mask, at)
        k, v, key_mask = (moved(x, shift) for x in (k, v, key_mask))
        out = self._from_the_front(q, k, v, key_mask, query_mask)
        # Outputs of padding are 0.
        place = torch.arange(N, device=q.device) - shift[:, None]
        return taken(out, (place + room) % (N + room)).masked_fill((place < N - M)[:, None, :, None], 0.0)

    def _from_the_front(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None
    ) -> Tensor:
        """Attention of texts that begin at the start of a block."""
        B, N, M = q.shape[0], q.shape[2], k.shape[2]
        keep = q.new_ones(1, M, dtype=torch.bool) if key_mask is None else key_mask
        asks = keep if query_mask is None else query_mask
        short = -M % self.block
        text = text_of(key_mask, query_mask)
        first = None if text is None else first_of(text) // self.block
        keep = _blocks(keep[..., None], self.block)[..., 0]  # (B or 1, n, b)
        k, v = (_blocks(x, self.block) for x in (k, v))  # (B, H, n, b, D)
        if key_mask is not None:
            there = keep[:, None, :, :, None]
            k, v = k.masked_fill(~there, 0.0), v.masked_fill(~there, 0.0)
        if self.shape.causal:
            P = self._past(k, keep, first)
        else:
            asks = _blocks(asks[..., None], self.block)[..., 0]
            queries = _blocks(q, self.block)
            whole = query_mask is None and key_mask is None
            if not whole:
                queries = queries.masked_fill(~asks[:, None, :, :, None], 0.0)
            P = self._permutation(queries, k, asks, keep, whole, first)
        padded = key_mask is not None or short > 0
        if self.cut is not None:
            return self._cut(q, k, v, P[:, :, : self.cut], keep if padded else None)
        # The queries are the last positions: behind a cache, only their blocks are computed.
        skipped = (M - N) // self.block
        lead = M - N - skipped * self.block
        P = P[:, :, skipped:]
        out = attend_sorted(
            F.pad(q, (0, 0, lead, short)).unflatten(2, (-1, self.block)) if lead or short else _blocks(q, self.block),
            k,
            v,
            P,
            self._share(P, keep if padded else None),
            keep[:, skipped:].expand(B, -1, -1) if padded else None,
            causal=self.shape.causal,
            dropout=self.dropout if self.training else 0.0,
        )
        return out.flatten(2, 3)[:, :, lead : lead + N]

    def _share(self, P: Tensor, keep: Tensor | None) -> Float[Tensor, "B H m b"] | None:
        """Share of kept keys in each position of the mixtures; 0 for the first causal block, which has none before."""
        if keep is not None:
            return _kept(P, keep)
        return (P > 0).any(-1, keepdim=True).to(P.dtype).expand(-1, -1, -1, self.block) if self.shape.causal else None

    def _scores(
        self, row_sums: Tensor, column_sums: Tensor, row_counts: Tensor, column_counts: Tensor, first: Tensor | None
    ) -> Float[Tensor, "B H n n"]:
        """R / T of sums (B, H, n, D) over blocks of (B or 1, n) vectors; `first` is the first block of each text."""
        row_sums, column_sums = exact(row_sums), exact(column_sums)
        if self.sort == NETWORK:
            with full_precision(row_sums):  # beyond the range of float16
                R = torch.relu(row_sums @ self.W_1.to(row_sums)) @ self.W_2[..., : row_sums.shape[2]].to(row_sums)
            if first is not None:  # the columns are of the blocks of the text
                of = (torch.arange(R.shape[3], device=R.device) - first[:, None]).clamp(min=0)
                R = R.gather(3, of[:, None, None].expand_as(R))
        else:
            size = row_counts.to(row_sums.dtype).clamp(min=1)[:, None, :, None]
            width = column_counts.to(row_sums.dtype).clamp(min=1)[:, None, None, :]
            with full_precision(row_sums):
                R = row_sums @ column_sums.mT / (size * width * row_sums.shape[3]).sqrt()
        if self.noise and self.training:
            # Gumbel noise is -log of an exponential variable, here never of 0.
            R = R - torch.empty_like(R).exponential_().clamp(min=1e-20).log()
        return R / self.temperature

    def _permutation(
        self, q: Tensor, k: Tensor, asks: Tensor, keep: Tensor, whole: bool, first: Tensor | None
    ) -> Float[Tensor, "B H n n"]:
        """Gumbel-Sinkhorn in logarithms, without blocks that hold only padding."""
        keys = k.sum(3, dtype=accurate(k))
        of_rows = keys if self.sort == NETWORK else q.sum(3, dtype=accurate(q))
        L = self._scores(of_rows, keys, asks.sum(2), keep.sum(2), first)
        gone = None if whole else ~(asks.any(2)[:, None, :, None] & keep.any(2)[:, None, None, :])
        # Finite, as the log-sum-exp of an empty row or column is not.
        least = torch.finfo(L.dtype).min / 4
        for _ in range(self.iterations):
            for dim in (3, 2):
                L = (L if gone is None else L.masked_fill(gone, least)).log_softmax(dim)
        # No query reads the row of a block whose queries are all masked.
        return L.exp() if gone is None else L.exp().masked_fill(gone, 0.0)

    def _past(self, k: Tensor, keep: Tensor, first: Tensor | None) -> Float[Tensor, "B H n n"]:
        """Row i: softmax over the blocks before i, by the keys before block i."""
        sums, counts = k.sum(3, dtype=accurate(k)), keep.sum(2)  # of long texts beyond the range of float16
        before = sums.cumsum(2).roll(1, 2)
        before[:, :, 0] = 0
        earlier = counts.cumsum(1).roll(1, 1)
        earlier[:, 0] = 0
        L = self._scores(before, sums, earlier, counts, first)
        blocks = L.shape[-1]
        seen = torch.ones(blocks, blocks, dtype=torch.bool, device=k.device).tril(-1) & keep.any(2)[:, None, None, :]
        none = ~seen.any(-1, keepdim=True)
        return L.masked_fill(~(seen | none), -torch.inf).softmax(-1).masked_fill(~seen, 0.0)

    def _cut(
        self, q: Tensor, k: Tensor, v: Tensor, P: Float[Tensor, "B H c n"], keep: Bool[Tensor, "B n b"] | None
    ) -> Float[Tensor, "B H N D"]:
        """Attention of all queries to the same mixtures alone."""
        dropout = self.dropout if self.training else 0.0
        keys, values = ((P.to(x.dtype) @ x.flatten(3)).unflatten(3, x.shape[3:]) for x in (k, v))
        if keep is None:
            return F.scaled_dot_product_attention(q, keys.flatten(2, 3), values.flatten(2, 3), dropout_p=dropout)
        share = _kept(P, keep)
        there = share > 0
        whole = torch.where(there, share, 1.0)
        keys, values = ((exact(x) / whole[..., None]).to(x.dtype).flatten(2, 3) for x in (keys, values))
        bias = whole.log().masked_fill(~there, -torch.inf).flatten(2)[:, :, None]
        none = (bias == -torch.inf).all(-1, keepdim=True)
        # A row without keys would be 0 / 0: let it see all, then set it to 0.
        bias = bias.masked_fill(none, 0.0).to(q.dtype)
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=bias, dropout_p=dropout)
        return out.masked_fill(none, 0.0)


def _blocks(x: Tensor, size: int) -> Tensor:
    """(..., M, D) to (..., n, b, D), with zeros behind the last position."""
    short = -x.shape[-2] % size
    return (F.pad(x, (0, 0, 0, short)) if short else x).unflatten(-2, (-1, size))


def _kept(P: Float[Tensor, "B H m n"], keep: Bool[Tensor, "B n b"]) -> Float[Tensor, "B H m b"]:
    """Share of kept keys in each position of a mixture: divided by it, the mixture is as large as without padding."""
    whole = exact(P)
    with full_precision(P):
        share = (whole @ exact(keep[:, None].to(P.dtype))) / whole.sum(-1, keepdim=True).clamp(min=LEAST)
    return share.masked_fill(share < LEAST, 0.0).clamp(max=1.0)
