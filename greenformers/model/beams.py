"""The cache of a beam search: keys and values are never moved, and a mask says which beam sees them.

When beams of a sequence are reordered, a cache with a row for each beam is copied as a whole at every step. Here the
beams of a sequence are queries to the keys of all of them: W times as many scores, which are few, and no copies.
"""

from typing import Any, cast

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from greenformers.attention._dense import dense_attention
from greenformers.attention._tiles import bias_of

_STEPS = 16  # steps that storage grows by


class Beams:
    """W beams of each of B sequences, and the keys that belong to the history of each.

    Attributes:
        width: Number W of beams.
        visible: Which keys each beam sees (B, W, W t) after t steps, with W keys per step.
    """

    def __init__(self, batch: int, width: int, device: torch.device) -> None:
        self.width = width
        self.visible = torch.zeros(batch, width, 0, dtype=torch.bool, device=device)

    def step(self) -> None:
        """Add a position: each beam sees its own key."""
        own = torch.eye(self.width, dtype=torch.bool, device=self.visible.device)
        self.visible = torch.cat([self.visible, own.expand(len(self.visible), -1, -1)], 2)

    def follow(self, parents: Tensor) -> None:
        """Continue each beam from its parent (B, W)."""
        self.visible = self.visible.gather(1, parents[..., None].expand_as(self.visible))

    def keep(self, sequences: Tensor) -> None:
        """Keep only these sequences."""
        self.visible = self.visible[sequences]


class BeamLayer(CacheLayerMixin):
    """A layer of a cache for softmax attention, with one row a sequence for all its beams.

    Args:
        beams: The beams, shared by all layers.
    """

    is_compileable = False

    def __init__(self, beams: Beams) -> None:
        super().__init__()
        self.beams, self.count = beams, 0

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of the next position of each beam (B W, H, 1, D), to itself and its history."""
        width = self.beams.width
        q, k, v = (x[:, :, 0].unflatten(0, (-1, width)).transpose(1, 2) for x in (q, k, v))  # (B, H, W, D)
        if self.count % (_STEPS * width) == 0:
            self.keys, self.values = (self._longer(old, x) for old, x in ((self.keys, k), (self.values, v)))
        keys, values = (cast(Tensor, x) for x in (self.keys, self.values))
        end = self.count + width
        keys[:, :, self.count : end], values[:, :, self.count : end] = k, v
        self.count, self.is_initialized = end, True
        bias = bias_of(self.beams.visible, q)[:, None].to(q.dtype)
        out = dense_attention(q, keys[:, :, :end], values[:, :, :end], bias=bias)
        return out.transpose(1, 2).flatten(0, 1)[:, :, None]

    def _longer(self, old: Tensor | None, like: Tensor) -> Tensor:
        batch, heads, width, dim = like.shape
        new = like.new_empty(batch, heads, self.count + _STEPS * width, dim)
        if old is not None:
            new[:, :, : self.count] = old
        return new

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only these sequences."""
        self.keys, self.values = cast(Tensor, self.keys)[indices], cast(Tensor, self.values)[indices]

    def get_seq_length(self) -> int:  # noqa: D102
        return self.count // self.beams.width

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: D102
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:  # noqa: D102
        return -1

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: storage is allocated when it is needed."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Not available.

        Raises:
            ValueError: Always, as the cached keys include those of other beams.
        """
        raise ValueError("keys of beams are only attended to, not given away")
