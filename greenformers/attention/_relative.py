"""Engine of attention with relative positions. Dai 2019, arXiv:1901.02860, section 3.3.

score_ij = D^-1/2 ((q_i + u) k_j + (q_i + v) W_R R_{i-j}), R_t the sinusoids of distance t. The fast form computes F =
R W_R^T once, and the scores in tiles (`_relative_tiles.py`); of few queries, and in exported programs, all at once,
shifted row by row.
Time O(N M D + M d^2), memory O(M d).
"""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers.attention._aligned import finite, is_compiled, is_traced
from greenformers.attention._base2 import LN2
from greenformers.attention._by_distance import tiled, without_keys
from greenformers.attention._contract import Attention, Shape, accurate, check_fit, exact, full_precision, on_gpu
from greenformers.attention._flex import LEAST_WIDTH, flex_by_distance
from greenformers.attention._reference import seen_keys, weighted_mean
from greenformers.attention._relative_tiles import FEW, HIDDEN, in_tiles

AHEAD = 256
"""Distances are kept for a multiple of so many keys, so that a growing cache does not need new ones each time."""


def reference(
    mechanism: "Relative",
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M D"],
    key_mask: Bool[Tensor, "B M"] | None = None,
) -> Float[Tensor, "B H N D"]:
    """Softmax attention by the sum of the four terms of A_rel / sqrt(D): q k, q W_R R_{i-j}, u k and v W_R R_{i-j}."""
    N, M, d = q.shape[2], k.shape[2], mechanism.W_R.shape[2]
    distance = torch.arange(M - N, M)[:, None] - torch.arange(M)
    rates = torch.tensor([10000 ** (-2 * n / d) for n in range((d + 1) // 2)], dtype=q.dtype)
    angles = distance[..., None] * rates
    R = torch.cat([angles.sin(), angles.cos()], 2)[..., :d]  # (N, M, d)
    keys = torch.einsum("hed,nmd->hnme", mechanism.W_R, R)  # (H, N, M, D)
    u, v_ = mechanism.u[:, None], mechanism.v[:, None]  # (H, 1, D)
    A = q @ k.mT + torch.einsum("bhne,hnme->bhnm", q, keys)
    A = A + u @ k.mT + torch.einsum("hoe,hnme->hnm", v_, keys)
    return weighted_mean((A / math.sqrt(q.shape[3])).exp(), v, seen_keys(mechanism, q, k, key_mask))


class Relative(Attention):
    """Softmax attention by content and distance; any number of keys.

    Args:
        shape: Heads, width and length.
        dropout: Probability of dropping an attention weight in training.

    Raises:
        ValueError: The attention is cross-attention, or `dropout` is not in [0, 1).
    """

    positions = "own"

    def __init__(self, shape: Shape, *, dropout: float = 0.0) -> None:
        super().__init__(shape)
        name = type(self).__name__.lower()
        if shape.cross:
            raise ValueError(f"{name} has no cross-attention: there are no distances between two sequences")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        self.dropout = dropout
        H, D = shape.heads, shape.head_dim
        self.u, self.v = nn.Parameter(torch.empty(H, D)), nn.Parameter(torch.empty(H, D))
        self.W_R = nn.Parameter(torch.empty(H, D, H * D))
        self._kept: tuple[tuple[object, ...], Tensor, Tensor] | None = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw u, v and W_R."""
        for parameter in (self.u, self.v):
            nn.init.normal_(parameter, std=0.02)
        nn.init.normal_(self.W_R, std=(self.shape.heads * self.shape.head_dim) ** -0.5)

    def forward(
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H M D"],
        v: Float[Tensor, "B H M D"],
        key_mask: Bool[Tensor, "B M"] | None = None,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B H N D"]:
        check_fit(q, k, v, key_mask, self.shape, query_mask)
        N, M = q.shape[2], k.shape[2]
        if not self.shape.causal and N != M:
            raise ValueError(f"there must be as many queries as keys, got {N} and {M}")
        q, k, v = finite(q, k, v, key_mask, query_mask)
        if not in_tiles(q, M) or N <= FEW:
            return self._at_once(q, k, v, key_mask)
        bias = none = None
        if key_mask is not None:
            bias = torch.zeros_like(key_mask, dtype=accurate(q)).masked_fill_(~key_mask, HIDDEN)
            none = without_keys(key_mask, N, causal=self.shape.causal)
        dropout = self.dropout if self.training else 0.0
        scale = q.shape[3] ** -0.5 / LN2
        if on_gpu(q) and q.shape[3] >= LEAST_WIDTH and not dropout and not is_compiled():
            return self._by_flex(q, k, v, key_mask)
        with full_precision(q):
            x = exact(q)
            qu, qv = ((x + exact(y)[:, None]) * scale for y in (self.u, self.v))
            F = self._of_distances(x, N, M)
            out = tiled(qu, qv, exact(k), exact(v), F, bias, causal=self.shape.causal, dropout=dropout)
        return (out if none is None else out.masked_fill(none, 0.0)).to(v.dtype)

    def _by_flex(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Float[Tensor, "B H N D"]:
        """By FlexAttention, whose biases are the products with distances."""
        qu, qv = ((q + y.to(q.dtype)[:, None]) * q.shape[3] ** -0.5 for y in (self.u, self.v))
        with full_precision(q):
            F = self._of_distances(exact(q[:, :, :1]), q.shape[2], k.shape[2]).to(q.dtype)
        return flex_by_distance(
            qu, k, v, key_mask, lambda rows, some: qv[:, :, rows] @ F[:, some].mT, causal=self.shape.causal
        )

    def _at_once(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Float[Tensor, "B H N D"]:
        """With all scores."""
        N, M, scale = q.shape[2], k.shape[2], q.shape[3] ** -0.5
        with full_precision(q):  # as in tiles, so that tokens one by one have the outputs of the whole text
            x = exact(q)
            far = self._distances((x + exact(self.v)[:, None]) * scale, M)
            scores = torch.matmul((x + exact(self.u)[:, None]) * scale, exact(k).mT).add_(_Shifted.apply(far, M))
            hidden, none = _hidden(key_mask, N, M, causal=self.shape.causal, device=q.device)
            if hidden is not None:
                scores = scores.masked_fill(hidden, HIDDEN)
            weights = scores.softmax(-1)
            if none is not None:
                weights = weights.masked_fill(none, 0.0)
            if self.training and self.dropout:
                weights = nn.functional.dropout(weights, self.dropout)
            return (weights @ exact(v)).to(v.dtype)

    def _waves(self, N: int, M: int, like: Tensor) -> Float[Tensor, "t d"]:
        """R_t from the farthest key before the last query to the farthest one behind the first."""
        last = 0 if self.shape.causal else 1 - N
        distances = torch.arange(M - 1, last - 1, -1, device=like.device, dtype=accurate(like))
        return waves(distances, self.W_R.shape[2])

    def _of_distances(self, like: Tensor, N: int, M: int) -> Float[Tensor, "H t D"]:
        """F = R W_R^T; kept for the next call where it has no gradient."""
        if torch.is_grad_enabled() or is_traced(like):
            return self._waves(N, M, like) @ exact(self.W_R).mT
        # Causal, the farthest distance comes first and 0 last: those of a few more keys hold those of fewer.
        size = -(-M // AHEAD) * AHEAD if self.shape.causal else M
        key = size, None if self.shape.causal else N, like.dtype, like.device
        if self._kept is None or self._kept[0] != key or not self._kept[1].equal(self.W_R):
            self._kept = key, self.W_R.detach().clone(), self._waves(N, size, like) @ exact(self.W_R).mT
        return self._kept[2][:, size - M :]

    def _distances(self, q: Float[Tensor, "B H N D"], M: int) -> Float[Tensor, "B H N t"]:
        """Q W_R R_t for all distances."""
        N, (H, D) = q.shape[2], self.u.shape
        if not torch.is_grad_enabled() and not is_traced(q):
            with full_precision(q):
                F = self._of_distances(q, N, M)
            if len(q) == 1:
                return q @ F.to(q.dtype).mT
            # By heads: else F would be copied for every text.
            by_heads = q.transpose(0, 1).flatten(1, 2) @ F.to(q.dtype).mT
            return by_heads.unflatten(1, (-1, N)).transpose(0, 1)
        R, W_R = self._waves(N, M, q).to(q.dtype), self.W_R.to(q.dtype)
        # The cheaper of two orders: with few queries their products with W_R are fewer than those of the distances.
        if N * D * H * D + N * len(R) * H * D < len(R) * H * D * D + N * len(R) * D:
            return (q @ W_R) @ R.T
        return q @ (W_R @ R.T)


def waves(distances: Tensor, width: int) -> Float[Tensor, "t d"]:
    """Sines, then cosines, of wavelengths from 2 pi to 10000 x 2 pi. Vaswani 2017, arXiv:1706.03762, 3.5."""
    columns = torch.arange(0, width, 2, device=distances.device, dtype=distances.dtype)
    rates = 10000.0 ** (-columns / width)
    angles = distances[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)[:, :width]


class _Shifted(torch.autograd.Function):
    """Row i of N, of distances in falling order, moved N - 1 - i places to the left; then the first M of it.

    Behind the last place of a causal row stand the values that follow in memory, for later keys, which are hidden.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Float[Tensor, "B H N t"], M: int) -> Float[Tensor, "B H N M"]:
        return _moved(x.contiguous(), M)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:  # noqa: ARG004 - as autograd calls it
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        # Rows read as one shorter than they are. Where rows are as long as M, the last place of a row is the first of
        # the next one: of a later key, whose gradient is 0, in all rows but the last.
        rows = nn.functional.pad(grad, (0, ctx.shape[3] - grad.shape[3]))
        start = grad.new_zeros(*grad.shape[:2], grad.shape[2] - 1)
        return torch.cat([start, rows[..., :-1].flatten(2), rows[:, :, -1, -1:]], 2).view(ctx.shape), None


def _moved(x: Tensor, M: int) -> Tensor:
    """A view: rows one shorter than they are, from place N - 1 on."""
    N, t = x.shape[2:]
    return x if t == 1 else x.view(*x.shape[:2], N * t)[:, :, N - 1 :].unfold(2, M, t - 1)


def _hidden(
    key_mask: Tensor | None, N: int, M: int, *, causal: bool, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    """Which keys each query does not see, None where it sees all; and which queries see none."""
    if key_mask is None and (not causal or N == 1):
        return None, None
    hidden = torch.zeros(N, M, dtype=torch.bool, device=device)
    if causal:
        hidden = torch.ones_like(hidden).triu_(M - N + 1)
    none = None
    hidden = hidden[None, None]
    if key_mask is not None:
        hidden = hidden | ~key_mask[:, None, None]
        none = hidden.all(-1, keepdim=True)
    return hidden, none
