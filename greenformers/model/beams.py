"""The cache of a beam search: keys and values stay where they were made, and a mask says whose they are.

Where beams of one sequence change places, a cache with a row for each would be copied as a whole at every step. Here
the beams of a sequence are queries to the keys of all of them: W times as many scores, which are few, and no copies.
"""

from typing import Any, cast

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from greenformers.attention._dense import dense_attention
from greenformers.attention._tiles import bias_of

_STEPS = 16  # room is made for so many steps at a time


class Beams:
    """W beams of each of B sequences, and which of all keys belong to the history of each.

    Attributes:
        width: W.
        visible: the keys that each beam sees (B, W, W t) after t steps, W of each step.
    """

    def __init__(self, batch: int, width: int, device: torch.device) -> None:
        self.width = width
        self.visible = torch.zeros(batch, width, 0, dtype=torch.bool, device=device)

    def step(self) -> None:
        """One position more: each beam sees its own."""
        own = torch.eye(self.width, dtype=torch.bool, device=self.visible.device)
        self.visible = torch.cat([self.visible, own.expand(len(self.visible), -1, -1)], 2)

    def follow(self, parents: Tensor) -> None:
        """Each beam goes on from its parent (B, W)."""
        self.visible = self.visible.gather(1, parents[..., None].expand_as(self.visible))

    def keep(self, sequences: Tensor) -> None:
        """Only these sequences go on."""
        self.visible = self.visible[sequences]


class BeamLayer(CacheLayerMixin):
    """A layer of a cache for softmax attention, with one row a sequence for all its beams.

    Args:
        beams: of all layers.
    """

    is_compileable = False

    def __init__(self, beams: Beams) -> None:
        super().__init__()
        self.beams, self.count = beams, 0

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of one position more of each beam (B W, H, 1, D), to it and its history."""
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
        """Only these sequences go on."""
        self.keys, self.values = cast(Tensor, self.keys)[indices], cast(Tensor, self.values)[indices]

    def get_seq_length(self) -> int:  # noqa: D102
        return self.count // self.beams.width

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: D102
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:  # noqa: D102
        return -1

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: room is made when it is needed."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Not available.

        Raises:
            ValueError: always: keys of other beams are among those that are kept.
        """
        raise ValueError("keys of beams are only attended to, not given away")
