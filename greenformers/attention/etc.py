"""ETC. Ainslie 2020, arXiv:2004.08483, 3.1-3.3: a global input beside a long one, with labels of relative position.

Four parts: global to global, global to long and long to global see all, long to long sees a window of radius r. Time
O(N (r + g) D), memory O(N D) and O(g N). Bidirectional only.
The fast form takes queries in tiles, each beside the keys they may see (`_block_sparse.py`).
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers.attention._block_sparse import BlockSparse
from greenformers.attention._contract import Shape
from greenformers.attention._reference import Visible, dot_products, pairs_or, seen_keys, text_by_text, weighted_mean
from greenformers.attention._tiles import Tiling, band


def formula(mechanism: "Etc", i: int, j: int, head: int, length: int) -> bool:
    """Whether i sees j: within r positions, or one of them is global."""
    return abs(i - j) <= mechanism.radius or i < mechanism.globals or j < mechanism.globals


@text_by_text
def reference(
    mechanism: "Etc",
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H N D"],
    v: Float[Tensor, "B H N D"],
    key_mask: Bool[Tensor, "B N"] | None = None,
    visible: Visible | None = None,
) -> Float[Tensor, "B H N D"]:
    """softmax(q_i (k_j + a_ij) / sqrt(D)) v, a_ij the label of the pair, over the pairs for which the formula holds."""
    N, scores = q.shape[2], dot_products(q, k)
    seen = pairs_or(visible, formula, mechanism, N, N) & seen_keys(mechanism, q, k, key_mask)
    if mechanism.clip is not None:
        at, c = torch.arange(N), mechanism.clip
        label = (at - at[:, None]).clamp(-c, c) + c
        wide_query, wide_key = (at < mechanism.globals)[:, None, None], (at < mechanism.globals)[:, None]
        between = torch.where(wide_query, mechanism.between[:, None, None, 1], mechanism.between[:, None, None, 0])
        a = torch.where(wide_query, mechanism.wide[:, label], mechanism.long[:, label])
        a = torch.where(wide_query == wide_key, a, between)  # (H, N, N, D)
        scores = scores + torch.einsum("bhid,hijd->bhij", q, a) / math.sqrt(q.shape[3])
    return weighted_mean(scores.exp(), v, seen)


class Etc(BlockSparse):
    """i sees j if abs(i - j) <= r, or i or j is global: the first g positions of a text are the global input.

    Key j counts as k_j + a for query i, where the vector a is one of 2c + 1 for the distance j - i within the long
    input, clipped to c, one of as many others within the global input, or one of two between them.

    Args:
        shape: Heads, width and length.
        globals: Number g of global positions; by default 16, or `max_len` where that is shorter.
        radius: Radius r of the window.
        clip: Largest distance c with a label of its own; None: no labels.
        dropout: Probability of dropping an attention weight in training.

    Raises:
        ValueError: The attention is causal or cross-attention, or an option is out of range.
    """

    rank_option = "radius"
    period = 0  # the first positions are global

    takes_rotation = False  # its labels say how far away a key is

    def __init__(
        self,
        shape: Shape,
        *,
        globals: int | None = None,  # noqa: A002 - the paper's word
        radius: int = 84,
        clip: int | None = 12,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(shape, dropout=dropout)
        self.refuse_causal("the global input sees all")
        count = min(16, shape.max_len) if globals is None else globals
        for name, value, least in (("globals", count, 0), ("radius", radius, 1), ("clip", clip, 0)):
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        self.globals, self.radius, self.clip = count, radius, clip
        if clip is not None:
            size = (shape.heads, 2 * clip + 1, shape.head_dim)
            self.long, self.wide = nn.Parameter(torch.empty(size)), nn.Parameter(torch.empty(size))
            # Labels of keys of the other input, for queries of the long and of the global input.
            self.between = nn.Parameter(torch.empty(shape.heads, 2, shape.head_dim))
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw labels from N(0, 0.02^2)."""
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)

    def visible(  # noqa: D102
        self, i: Tensor, j: Tensor, head: int | Tensor, is_global: Tensor, length: int
    ) -> Tensor:
        return ((i - j).abs() <= self.radius) | is_global[i] | is_global[j]

    def ends(self, length: int) -> tuple[int, int]:  # noqa: D102
        return min(self.globals, length), 0

    def tilings(self, length: int) -> tuple[Tiling, ...]:  # noqa: D102
        return (band(self.radius, causal=False),)

    def labels(self) -> Tensor | None:  # noqa: D102
        return None if self.clip is None else self.long

    def column_keys(self, k: Tensor) -> Tensor:  # noqa: D102
        return k if self.clip is None else k + self.between[:, :1].to(k.dtype)

    def row_bias(self, q: Tensor, length: int) -> Tensor | None:  # noqa: D102
        if self.clip is None:
            return None
        count = q.shape[2]
        at = torch.arange(count, device=q.device)
        label = (at - at[:, None]).clamp(-self.clip, self.clip) + self.clip
        q = q * q.shape[3] ** -0.5
        near = (q @ self.wide.mT.to(q.dtype)).gather(3, label.expand(*q.shape[:2], -1, -1))
        far = (q @ self.between[:, 1:].mT.to(q.dtype)).expand(-1, -1, -1, length - count)
        return torch.cat([near, far], 3)
