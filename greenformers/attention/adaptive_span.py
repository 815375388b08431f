"""Adaptive span. Sukhbaatar 2019, arXiv:1905.07799, eq. 4-5 and 3.2: each head learns how far back it looks.

score = D^-1/2 q_i (k_j + p_x), with p a table of positions that all heads and layers share, and x the distance, from 0
on. A weight at x is multiplied by m(x) = clamp((z S + R - x) / R, 0, 1) after the softmax, and the row divided by its
sum: the same as softmax of the scores plus log m. z is a number of the head, or of each of its queries. The fast form
takes queries in tiles, and computes nothing beyond the farthest key with m > 0; log m is one more column of p. Exported
programs take all pairs.
Time O(N r D), with r = min(z S + R, S) of the widest head; memory O(N D), O(N r) where each query has its own z.
"""

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from greenformers.attention._aligned import finite, is_compiled, is_counted, is_traced
from greenformers.attention._by_distance import by_distance
from greenformers.attention._contract import Attention, Shape, check_fit, exact, on_gpu
from greenformers.attention._dense import kernels
from greenformers.attention._flex import LEAST_WIDTH, flex_by_distance
from greenformers.attention._reference import seen_keys, weighted_mean
from greenformers.attention._relative_tiles import FEW, HIDDEN, in_tiles

BLOCK = 128
"""Number of queries that share a range of keys, where each has its own z."""


def reference(
    mechanism: "AdaptiveSpan",
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M D"],
    key_mask: Bool[Tensor, "B M"] | None = None,
    inputs: Float[Tensor, "B N d"] | None = None,
) -> Float[Tensor, "B H N D"]:
    """sum_j w_ij v_j / sum_j w_ij with w_ij = m(x) exp(q_i (k_j + p_x) / sqrt(D)), eq. 5; x = abs(i - j) - 1.

    With `include_self` x = abs(i - j). A bidirectional network has vectors p of its own for later keys.
    """
    N, M, S, R = q.shape[2], k.shape[2], mechanism.span, mechanism.ramp
    t = torch.arange(M - N, M)[:, None] - torch.arange(M)
    x = t.abs() - (0 if mechanism.include_self else 1)
    keys = k[:, :, None]  # (B, H, 1, M, D)
    if mechanism.position_term:
        keys = keys + mechanism.p[torch.where(t >= 0, x, S - 1 - t).clamp(0, len(mechanism.p) - 1)]  # (N, M, D)
    A = torch.einsum("bhnd,bhnmd->bhnm", q, keys.expand(*q.shape[:3], M, -1)) / math.sqrt(q.shape[3])
    if mechanism.dynamic:
        inputs = q.transpose(1, 2).flatten(2) if inputs is None else inputs
        z = torch.sigmoid(inputs @ mechanism.v.T + mechanism.b).mT[..., None]  # (B, H, N, 1)
    else:
        z = mechanism.z.clamp(0, 1)[:, None, None]
    m = ((z * S + R - x) / R).clamp(0, 1) * ((x >= 0) & (x < S))
    return weighted_mean(m * A.exp(), v, seen_keys(mechanism, q, k, key_mask))


class AdaptiveSpan(Attention):
    """Softmax attention within a learned distance; bidirectional, to both sides.

    Args:
        shape: Heads, width and length.
        span: Longest span S, the number of keys that a head can come to see. By default `max_len`.
        ramp: Number R of positions over which m(x) falls from 1 to 0.
        init: Initial z of all heads, in 0..1. With 0, as in the paper, a head sees R keys.
        dynamic: Whether each query has z = sigmoid(v x + b) of the layer's input x (3.2), with b = -4 at the start.
            Causal computation is then trimmed to S only, as the widest span of a sequence depends on its future.
        position_term: Whether scores have the term q p. Without it distances enter by spans alone, and positions are
            the model's.
        include_self: Whether a query sees its own position. By default where bidirectional: the paper's causal network
            sees earlier ones alone.
        penalty: Factor c of the loss c S mean(z) of `forward_with_loss`.
        dropout: Probability of dropping an attention weight in training.

    Raises:
        ValueError: The attention is cross-attention, or an option is out of range.
    """

    rank_option = "span"
    has_loss = True
    takes_rotation = True
    positions: Literal["model", "own"] = "own"

    def __init__(
        self,
        shape: Shape,
        *,
        span: int | None = None,
        ramp: int = 32,
        init: float = 0.0,
        dynamic: bool = False,
        position_term: bool = True,
        include_self: bool | None = None,
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
        if dynamic and init:
            raise ValueError(f"init must be 0 with dynamic, whose spans come from the input, got {init}")
        if not penalty >= 0:
            raise ValueError(f"penalty must be at least 0, got {penalty}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        self.span, self.ramp, self.init, self.dynamic = span, ramp, init, dynamic
        self.include_self = not shape.causal if include_self is None else include_self
        self.penalty, self.dropout, self.takes_inputs = penalty, dropout, dynamic
        self.position_term, self.positions = position_term, self.positions_with(position_term=position_term)
        if position_term:
            rows = span if shape.causal else 2 * span - self.include_self
            self.p = nn.Parameter(torch.empty(rows, shape.head_dim))
        if dynamic:
            self.v = nn.Parameter(torch.empty(shape.heads, shape.heads * shape.head_dim))
            self.b = nn.Parameter(torch.empty(shape.heads))
        else:
            self.z = nn.Parameter(torch.empty(shape.heads))
        self.reset_parameters()

    @classmethod
    def positions_with(cls, *, position_term: bool = True, **_: Any) -> Literal["model", "own"]:  # noqa: D102
        return "own" if position_term else "model"

    def reset_parameters(self) -> None:
        """Draw p, and set z to `init`; dynamic: draw v and b so that spans of all queries are small."""
        if self.position_term:
            nn.init.normal_(self.p, std=0.02)
        if self.dynamic:
            nn.init.normal_(self.v, std=self.v.shape[1] ** -0.5)
            nn.init.constant_(self.b, -4.0)
        else:
            nn.init.constant_(self.z, self.init)

    def shared(self, first: Attention) -> None:
        """Take the table of positions of layer 0, where the tables are equally long."""
        if self.position_term and isinstance(first, AdaptiveSpan) and first.position_term:
            if first.p.shape != self.p.shape:
                raise ValueError(
                    f"layers share one table of positions: span must be {first.span} as in layer 0, got {self.span}"
                )
            self.p, self.shared_parameters = first.p, ("p",)

    @torch.no_grad()
    def update_(self) -> None:
        """Clamp z to 0..1 after a training step."""
        if not self.dynamic:
            self.z.clamp_(0, 1)

    @property
    def reach(self) -> int:
        """Distance of the farthest key that a query may see."""
        if self.dynamic:
            return self.span - self.include_self
        return self._reach(self._z(self.z, None, None), None)

    def forward(  # noqa: D102
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
        inputs: Float[Tensor, "B N d"] | None = None,
    ) -> Float[Tensor, "B H N D"]:
        return self._mixed(q, k, v, key_mask, query_mask, inputs)[0]

    def forward_with_loss(  # noqa: D102
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
        inputs: Float[Tensor, "B N d"] | None = None,
    ) -> tuple[Float[Tensor, "B H N D"], Float[Tensor, ""]]:
        out, z, kept_queries = self._mixed(q, k, v, key_mask, query_mask, inputs)
        if self.dynamic and kept_queries is not None:
            z = (z * kept_queries[:, None]).sum() / (self.shape.heads * kept_queries.sum().clamp(min=1))
        return out, self.penalty * self.span * z.mean()

    def _mixed(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, inputs: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The outputs, z (1, H, 1) or (B, H, N), and the mask of kept queries."""
        check_fit(q, k, v, key_mask, self.shape, query_mask)
        q, k, v = finite(q, k, v, key_mask, query_mask)
        N, M = q.shape[2], k.shape[2]
        if not self.shape.causal and N != M:
            raise ValueError(f"there must be as many queries as keys, got {N} and {M}")
        kept_queries = key_mask if query_mask is None and N == M else query_mask
        z = self._z(q, inputs, kept_queries)
        back = self._reach(z, kept_queries)
        ahead = 0 if self.shape.causal else back
        if not in_tiles(q, M) or N <= FEW:
            out = self._at_once(q, k, v, key_mask, z, back)
        elif not self.dynamic:
            out = self._in_tiles(q, k, v, key_mask, z, back)
        elif BLOCK + back + ahead >= M or N <= BLOCK:
            out = self._at_once(q, k, v, key_mask, z, back)
        else:
            out = self._in_blocks(q, k, v, key_mask, z, back, ahead)
        return out, z, kept_queries

    def _z(self, q: Tensor, inputs: Tensor | None, kept_queries: Tensor | None) -> Tensor:
        if not self.dynamic:
            return exact(self.z).clamp(0, 1)[None, :, None]
        x = q.transpose(1, 2).flatten(2) if inputs is None else inputs
        if inputs is not None and kept_queries is not None:
            x = x.masked_fill(~kept_queries[..., None], 0.0)
        return torch.sigmoid(exact(F.linear(x, self.v.to(x.dtype), self.b.to(x.dtype)))).mT

    def _reach(self, z: Tensor, kept_queries: Tensor | None) -> int:
        """The largest distance that any head sees."""
        shift = 0 if self.include_self else 1
        if is_counted(z) and not self.dynamic:  # of a network that begins
            return min(self.span, math.ceil(self.init * self.span + self.ramp)) - 1 + shift
        if is_traced(z) or not z.numel() or (self.dynamic and self.shape.causal):
            return self.span - 1 + shift
        if self.dynamic and kept_queries is not None:
            z = z.detach().masked_fill(~kept_queries[:, None], 0.0)
        return min(self.span, math.ceil(float(z.detach().amax()) * self.span + self.ramp)) - 1 + shift

    def _places(self, distance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of distances i - j: x, whether S allows to see it, and the row of p."""
        x = distance.abs() - (0 if self.include_self else 1)
        seen = (x >= 0) & (x < self.span)
        if self.shape.causal:
            seen = seen & (distance >= 0)
            return x, seen, x.clamp(0, self.span - 1)
        rows = 2 * self.span - self.include_self
        return x, seen, torch.where(distance >= 0, x, self.span - 1 - distance).clamp(0, rows - 1)

    def _log_mask(self, x: Tensor, seen: Tensor, z: Tensor, hidden: float) -> Tensor:
        """The logarithm of m, `hidden` where it is 0; x of a shape s and z of a shape that fits it."""
        m = ((z * self.span + self.ramp - x) / self.ramp).clamp(0, 1)
        seen = seen & (m > 0)
        # Not the logarithm of 0, whose derivative is infinite.
        return torch.where(seen, m, 1.0).log().masked_fill(~seen, hidden)

    # Queries in tiles, where z is of the head.

    def _in_tiles(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, z: Tensor, back: int) -> Tensor:
        N, M = q.shape[2], k.shape[2]
        lowest = 0 if self.shape.causal else 1 - N
        x, seen, rows = self._places(torch.arange(M - 1, lowest - 1, -1, device=q.device))
        bias, vectors = self._log_mask(x, seen, z[0], HIDDEN), self.p[rows] if self.position_term else None
        dropout = self.dropout if self.training else 0.0
        if on_gpu(q) and q.shape[3] >= LEAST_WIDTH and not dropout and not is_compiled():
            scaled = q * q.shape[3] ** -0.5

            def biases(at: slice, some: slice) -> Tensor:
                of_distances = bias[None, :, None, some].to(q.dtype)
                return (
                    of_distances if vectors is None else of_distances + scaled[:, :, at] @ vectors[some].to(q.dtype).mT
                )

            out = flex_by_distance(scaled, k, v, key_mask, biases, causal=self.shape.causal, window=back)
        else:
            # Compiled, how far a head looks is read by the operator as it runs.
            window = self._farthest(z).amax() if is_compiled() else back
            out = by_distance(
                q, k, v, key_mask, vectors=None if vectors is None else vectors[None], bias=bias,
                causal=self.shape.causal, dropout=dropout, window=window,
            )  # fmt: skip
        return out.masked_fill(self._without_keys(z, N, M, key_mask), 0.0)

    def _without_keys(self, z: Tensor, N: int, M: int, key_mask: Tensor | None) -> Tensor:
        """Whether a query sees no key (B or 1, H, N, 1)."""
        keys = torch.ones(1, M, dtype=torch.bool, device=z.device) if key_mask is None else key_mask
        before = F.pad(keys.cumsum(1), (1, 0))  # of the keys before each position and before the end
        shift = 0 if self.include_self else 1
        farthest = self._farthest(z)
        i = torch.arange(M - N, M, device=z.device)
        count = before[:, (i + 1 - shift)][:, None] - before[:, (i - farthest).clamp(min=0)]
        if not self.shape.causal:
            count = count + before[:, (i + 1 + farthest).clamp(max=M)] - before[:, i + 1][:, None]
        return (count <= 0)[..., None]

    def _farthest(self, z: Tensor) -> Int[Tensor, "H 1"]:
        """The largest distance that each head sees, where z is of the head."""
        shift = 0 if self.include_self else 1
        return (z[0].detach() * self.span + self.ramp).ceil().clamp(max=self.span).long() - 1 + shift

    # Queries in blocks, each over the range of keys around it, where each has its own z.

    def _softmax(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        none = (bias == -torch.inf).all(-1, keepdim=True)
        # A row without keys would be 0 / 0: let it see all, then set it to 0.
        bias = bias.masked_fill(none, 0.0).to(q.dtype)
        dropout = self.dropout if self.training else 0.0
        with kernels(bias):
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
        return out.masked_fill(none, 0.0)

    def _bias(self, q: Tensor, distance: Tensor, z: Tensor, back: int) -> Tensor:
        """The biases log m + q p of distances (b, w), z (..., b or 1) and queries (..., b, D): (..., b, w)."""
        x, seen, rows = self._places(distance)
        bias = self._log_mask(x, seen, z[..., None], -torch.inf)
        if not self.position_term:
            return bias
        count = min(len(self.p), back + 1) if self.shape.causal else len(self.p)  # beyond it m is 0
        far = (q * q.shape[-1] ** -0.5) @ self.p[:count].to(q.dtype).mT
        return bias + far.gather(-1, rows.clamp(max=count - 1).expand(*far.shape[:-2], *rows.shape))

    def _at_once(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, z: Tensor, back: int) -> Tensor:
        """All queries over the keys that any of them sees."""
        past = k.shape[2] - q.shape[2]
        first = max(0, past - back)
        i = torch.arange(past, k.shape[2], device=q.device)
        j = torch.arange(first, k.shape[2], device=q.device)
        bias = self._bias(q, i[:, None] - j, z, back)
        if key_mask is not None:
            bias = bias.masked_fill(~key_mask[:, None, None, first:], -torch.inf)
        return self._softmax(q, k[:, :, first:], v[:, :, first:], bias)

    def _in_blocks(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, z: Tensor, back: int, ahead: int
    ) -> Tensor:
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
        z = F.pad(z, (0, short)).unflatten(2, (blocks, BLOCK))
        queries = F.pad(q, (0, 0, 0, short)).unflatten(2, (blocks, BLOCK))  # (B, H, blocks, b, D)
        bias = self._bias(queries, distance, z, back).masked_fill(~valid[:, None, :, None], -torch.inf).flatten(1, 2)
        return self._softmax(queries.flatten(1, 2), keys, values, bias).reshape(B, H, -1, D)[:, :, :N]
