"""Adaptive span. Sukhbaatar 2019, arXiv:1905.07799, eq. 4-5 and 3.2: each head learns how far back it looks.

A weight at distance x is multiplied by m(x) = clamp((z S + R - x) / R, 0, 1) after the softmax, and the row divided by
its sum: the same as softmax of the scores plus log m. z is a number of the head, or of each of its queries. The fast
form takes queries in blocks, and computes nothing beyond the farthest key with m > 0.
Time O(N r D), memory O(N r), with r = min(z S + R, S) of the widest head.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers.attention._aligned import finite, is_traced
from greenformers.attention._contract import Attention, Shape, check_fit, exact
from greenformers.attention._dense import kernels
from greenformers.attention._reference import dot_products, seen_keys, weighted_mean

BLOCK = 128
"""Number of queries that share a range of keys."""


def reference(
    mechanism: "AdaptiveSpan",
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M D"],
    key_mask: Bool[Tensor, "B M"] | None = None,
) -> Float[Tensor, "B H N D"]:
    """sum_j w_ij v_j / sum_j w_ij with w_ij = m(abs(i - j)) exp(q_i k_j / sqrt(D)), eq. 5."""
    N, M, S, R = q.shape[2], k.shape[2], mechanism.span, mechanism.ramp
    distance = (torch.arange(M - N, M)[:, None] - torch.arange(M)).abs()
    if mechanism.dynamic:
        z = torch.sigmoid((q * mechanism.v[:, None]).sum(-1, keepdim=True) + mechanism.b[:, None, None])  # (B, H, N, 1)
    else:
        z = mechanism.z.clamp(0, 1)[:, None, None]
    m = ((z * S + R - distance) / R).clamp(0, 1) * (distance < S)
    return weighted_mean(m * dot_products(q, k).exp(), v, seen_keys(mechanism, q, k, key_mask))


class AdaptiveSpan(Attention):
    """Softmax attention within a learned distance; bidirectional, to both sides.

    Args:
        shape: Heads, width and length.
        span: Longest span S; keys at this distance and farther are never seen. By default `max_len`.
        ramp: Number R of positions over which m(x) falls from 1 to 0.
        init: Initial z of all heads, in 0..1. With 0, as in the paper, a head sees R - 1 positions back.
        dynamic: Whether each query has z = sigmoid(v q + b) (3.2), with b = -4 at the start. Causal computation is then
            trimmed to S only, as the widest span of a sequence depends on its future.
        penalty: Factor c of the loss c S mean(z) of `forward_with_loss`.
        dropout: Probability of dropping an attention weight in training.

    Raises:
        ValueError: The attention is cross-attention, or an option is out of range.
    """

    rank_option = "span"
    has_loss = True
    takes_rotation = True

    def __init__(
        self,
        shape: Shape,
        *,
        span: int | None = None,
        ramp: int = 32,
        init: float = 0.0,
        dynamic: bool = False,
        penalty: float = 2e-6,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(shape)
        span = shape.max_len if span is None else span
        if shape.cross:
            raise ValueError("adaptive_span has no cross-attention: there are no distances between two sequences")
        for name, value in (("span", span), ("ramp", ramp)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not 0 <= init <= 1:
            raise ValueError(f"init must be in 0..1, got {init}")
        if not penalty >= 0:
            raise ValueError(f"penalty must be at least 0, got {penalty}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        self.span, self.ramp, self.init, self.dynamic = span, ramp, init, dynamic
        self.penalty, self.dropout = penalty, dropout
        if dynamic:
            self.v = nn.Parameter(torch.empty(shape.heads, shape.head_dim))
            self.b = nn.Parameter(torch.empty(shape.heads))
        else:
            self.z = nn.Parameter(torch.empty(shape.heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set z to `init`; dynamic: draw v and b so that spans of all queries are small."""
        if self.dynamic:
            nn.init.normal_(self.v, std=self.shape.head_dim**-0.5)
            nn.init.constant_(self.b, -4.0)
        else:
            nn.init.constant_(self.z, self.init)

    @torch.no_grad()
    def update_(self) -> None:
        """Clamp z to 0..1 after a training step."""
        if not self.dynamic:
            self.z.clamp_(0, 1)

    def forward(  # noqa: D102
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B H N D"]:
        return self._mixed(q, k, v, key_mask, query_mask)[0]

    def forward_with_loss(  # noqa: D102
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
    ) -> tuple[Float[Tensor, "B H N D"], Float[Tensor, ""]]:
        out, z, kept_queries = self._mixed(q, k, v, key_mask, query_mask)
        if self.dynamic and kept_queries is not None:
            z = (z * kept_queries[:, None]).sum() / (self.shape.heads * kept_queries.sum().clamp(min=1))
        return out, self.penalty * self.span * z.mean()

    def _mixed(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The outputs, z (1, H, 1) or (B, H, N), and the mask of kept queries."""
        check_fit(q, k, v, key_mask, self.shape)
        q, k, v = finite(q, k, v, key_mask, query_mask)
        if not self.shape.causal and q.shape[2] != k.shape[2]:
            raise ValueError(f"there must be as many queries as keys, got {q.shape[2]} and {k.shape[2]}")
        kept_queries = key_mask if query_mask is None and q.shape[2] == k.shape[2] else query_mask
        z = self._z(q)
        back = self._reach(z, kept_queries) - 1
        ahead = 0 if self.shape.causal else back
        if BLOCK + back + ahead >= k.shape[2] or q.shape[2] <= BLOCK:
            out = self._at_once(q, k, v, key_mask, z, back)
        else:
            out = self._in_blocks(q, k, v, key_mask, z, back, ahead)
        return out, z, kept_queries

    def _z(self, q: Tensor) -> Tensor:
        if not self.dynamic:
            return exact(self.z).clamp(0, 1)[None, :, None]
        logits = torch.einsum("bhnd,hd->bhn", q, self.v.to(q.dtype)) + self.b.to(q.dtype)[:, None]
        return torch.sigmoid(exact(logits))

    def _reach(self, z: Tensor, kept_queries: Tensor | None) -> int:
        """The largest distance that any head sees, plus 1."""
        if is_traced(z) or (self.dynamic and self.shape.causal):
            return self.span
        if self.dynamic and kept_queries is not None:
            z = z.detach().masked_fill(~kept_queries[:, None], 0.0)
        return min(self.span, math.ceil(float(z.detach().amax()) * self.span + self.ramp))

    def _log_mask(self, distance: Tensor, z: Tensor) -> Tensor:
        """The logarithm of m, -inf where it is 0; distances (b, w) and z (..., b or 1) to (..., b, w)."""
        far = distance.abs()
        m = ((z[..., None] * self.span + self.ramp - far) / self.ramp).clamp(0, 1)
        seen = (m > 0) & (far < self.span)
        if self.shape.causal:
            seen = seen & (distance >= 0)
        # Not the logarithm of 0, whose derivative is infinite.
        return torch.where(seen, m, 1.0).log().masked_fill(~seen, -torch.inf)

    def _softmax(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        none = (bias == -torch.inf).all(-1, keepdim=True)
        # A row without keys would be 0 / 0: let it see all, then set it to 0.
        bias = bias.masked_fill(none, 0.0).to(q.dtype)
        dropout = self.dropout if self.training else 0.0
        with kernels(bias):
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
        return out.masked_fill(none, 0.0)

    def _at_once(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, z: Tensor, back: int) -> Tensor:
        """All queries over the keys that any of them sees."""
        past = k.shape[2] - q.shape[2]
        first = max(0, past - back)
        i = torch.arange(past, k.shape[2], device=q.device)
        j = torch.arange(first, k.shape[2], device=q.device)
        bias = self._log_mask(i[:, None] - j, z)
        if key_mask is not None:
            bias = bias.masked_fill(~key_mask[:, None, None, first:], -torch.inf)
        return self._softmax(q, k[:, :, first:], v[:, :, first:], bias)

    def _in_blocks(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, z: Tensor, back: int, ahead: int
    ) -> Tensor:
        """Queries in blocks, each over the range of keys around it."""
        B, H, N, D = q.shape
        past, short = k.shape[2] - N, -N % BLOCK
        first = max(0, past - back)
        before, width = back - (past - first), BLOCK + back + ahead
        valid = q.new_ones(1, k.shape[2], dtype=torch.bool) if key_mask is None else key_mask
        valid = F.pad(valid[:, first:], (before, short + ahead)).unfold(1, width, BLOCK)  # (B or 1, blocks, w)
        keys, values = (
            F.pad(x[:, :, first:], (0, 0, before, short + ahead)).unfold(2, width, BLOCK).mT.flatten(1, 2)
            for x in (k, v)
        )
        blocks = valid.shape[1]
        distance = torch.arange(BLOCK, device=q.device)[:, None] - torch.arange(-back, BLOCK + ahead, device=q.device)
        z = F.pad(z, (0, short)).unflatten(2, (blocks, BLOCK)) if self.dynamic else z[:, :, :, None]
        bias = self._log_mask(distance, z).masked_fill(~valid[:, None, :, None], -torch.inf).flatten(1, 2)
        queries = F.pad(q, (0, 0, 0, short)).reshape(B, H * blocks, BLOCK, D)
        return self._softmax(queries, keys, values, bias).reshape(B, H, -1, D)[:, :, :N]
