"""Engine of the Synthesizers: softmax over scores that are not products of queries and keys.

Tay 2020, arXiv:2005.00743.

Scores belong to positions, counted from the first kept one: in cross-attention those of queries and of keys apart,
else of both together, queries being the last of the keys' positions in the causal form.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers.attention._aligned import left_padding, text_of
from greenformers.attention._contract import Attention, Shape
from greenformers.attention._dense import dense_attention, visible_keys
from greenformers.attention._reference import dot_products, seen_keys, weighted_mean

Score = Callable[[Tensor, Tensor], Float[Tensor, "H b N M"]]
"""The score of position i for position j, of places (b, N, 1) and (b, 1, M)."""


def synthesized(
    mechanism: "Synthesizer",
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M D"],
    key_mask: Bool[Tensor, "B M"] | None,
    score: Score,
) -> Float[Tensor, "B H N D"]:
    """softmax(S) v over the keys seen, or mixed: softmax(alpha_1 q k^T / sqrt(D) + alpha_2 S) v (section 3.5)."""
    N, M = q.shape[2], k.shape[2]
    rows, columns = torch.arange(N)[None], torch.arange(M)[None]
    if mechanism.shape.causal:  # the queries are the last positions
        rows = columns[:, M - N :]
    S = score(rows[:, :, None], columns[:, None]).transpose(0, 1)
    if mechanism.mixed:
        dot, synthetic = mechanism.mix.exp() / mechanism.mix.exp().sum()
        S = dot * dot_products(q, k) + synthetic * S
    return weighted_mean(S.exp(), v, seen_keys(mechanism, q, k, key_mask))


class Synthesizer(Attention):
    """Base of the Synthesizers: the options they share, positions, and the softmax.

    Args:
        shape: Heads, width and length.
        mixed: Whether scores are alpha_1 s q k + alpha_2 times the synthetic ones, with alpha_1 + alpha_2 = 1 learned
            (section 3.5).
        dropout: Probability of dropping an attention weight in training.
        uses: Names of the projections without `mixed`.
        adds: Names of the projections that `mixed` needs besides q, k and v.

    Raises:
        ValueError: `dropout` is not in [0, 1).
    """

    bounded = True

    def __init__(
        self, shape: Shape, *, mixed: bool, dropout: float, uses: tuple[str, ...], adds: tuple[str, ...] = ()
    ) -> None:
        super().__init__(shape)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        self.mixed, self.dropout = mixed, dropout
        self.continues = not shape.cross  # a single query is taken for the first of its sequence
        self.projections = ("q", "k", "v", *adds) if mixed else uses
        if mixed:
            self.mix = nn.Parameter(torch.zeros(2))

    def reset_parameters(self) -> None:
        """Set equal shares of both kinds of scores."""
        if self.mixed:
            nn.init.zeros_(self.mix)

    def places(self, queries: int, keys: int, key_mask: Tensor | None, query_mask: Tensor | None) -> tuple[Any, Any]:
        """Positions of queries and keys: slices, or (B or 1, N) and (B or 1, M).

        Raises:
            ValueError: There are more queries than positions.
        """
        if queries > self.shape.max_len:
            raise ValueError(f"the number of queries must be in 1..{self.shape.max_len}, got {queries}")
        apart = not self.shape.causal and (self.shape.cross or queries != keys)
        padding = left_padding(text_of(key_mask, query_mask, cross=apart))
        if apart:
            return _counted(queries, left_padding(query_mask)), _counted(keys, padding)
        if padding is None:
            return slice(keys - queries, keys), slice(keys)
        columns = _counted(keys, padding)
        return columns[:, keys - queries :], columns

    def by_products(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, left: Tensor, right: Tensor
    ) -> Tensor:
        """Attention by scores left_i right_j, (B or 1, H, N, E) and (B or 1, H, M, E), without storing their matrix."""
        if self.mixed:
            dot, synthetic = self.mix.softmax(0)
            left = torch.cat([dot * q.shape[3] ** -0.5 * q, synthetic * left.expand(len(q), -1, -1, -1)], 3)
            right = torch.cat([k, right.expand(len(k), -1, -1, -1)], 3)
        left, right = (x.expand(len(v), -1, -1, -1) for x in (left, right))
        return dense_attention(left, right, v, key_mask, causal=self.shape.causal, scale=1.0, dropout=self._dropped)

    def by_scores(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, scores: Float[Tensor, "b H N M"]
    ) -> Tensor:
        """Attention by scores of each example, or by one matrix for all where b = 1."""
        if self.mixed:
            dot, synthetic = self.mix.softmax(0)
            q, scores = dot * q.shape[3] ** -0.5 * q, synthetic * scores
            causal, dropout = self.shape.causal, self._dropped
            return dense_attention(q, k, v, key_mask, causal=causal, bias=scores, scale=1.0, dropout=dropout)
        visible = visible_keys(scores.shape[2], scores.shape[3], key_mask, causal=self.shape.causal, device=v.device)
        if visible is not None:
            scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        if key_mask is not None and visible is not None:
            weights = weights * visible  # rows that see no key
        if self._dropped:
            weights = weights.expand(len(v), -1, -1, -1)  # each example drops its own
        weights = F.dropout(weights, self._dropped).to(v.dtype)
        if len(weights) == len(v):
            return weights @ v
        # One product for all examples: (H, N, M) (H, M, B D).
        mixed = weights[0] @ v.permute(1, 2, 0, 3).flatten(2)
        return mixed.unflatten(2, (len(v), v.shape[3])).permute(2, 0, 1, 3)

    @property
    def _dropped(self) -> float:
        return self.dropout if self.training else 0.0


def _counted(length: int, padding: Tensor | None) -> Any:
    """Positions (B, N) counted after padding (B,), which is at position 0; or a slice without padding."""
    if padding is None:
        return slice(length)
    return (torch.arange(length, device=padding.device) - padding[:, None]).clamp(min=0)


def rows_at(vectors: Float[Tensor, "H L E"], places: Any) -> Float[Tensor, "b H N E"]:
    """Vectors (1, H, N, E) or (B, H, N, E) of positions, from (H, L, E)."""
    return vectors[None, :, places] if isinstance(places, slice) else vectors[:, places].transpose(0, 1)
