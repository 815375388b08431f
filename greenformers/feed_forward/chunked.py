"""The feed-forward block in slices of positions, computed again in the backward pass. Kitaev 2020, arXiv:2001.04451, 3.

The same numbers as `dense`. Time O(N d f), with the inner activation computed twice; memory O(N d + c f), slices of c.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from greenformers.feed_forward._contract import Size
from greenformers.feed_forward._up_down import UpDown
from greenformers.lowrank.feed_forward import can_slice, slice_length, sliced_feed_forward


class Chunked(UpDown):
    """down(activation(up(x))), of which only the input is kept for the backward pass.

    Args:
        size: Sizes of the network around it.
        chunk: Number c of positions of a slice; by default as many as suit the device.

    Raises:
        ValueError: `chunk` is below 1, or the activation has parameters.
    """

    def __init__(self, size: Size, *, chunk: int | None = None) -> None:
        super().__init__(size)
        if chunk is not None and chunk < 1:
            raise ValueError(f"chunk must be at least 1, got {chunk}")
        if self.activation_learns:
            name = type(self.activation).__name__
            raise ValueError(f"activation must have no parameters where feed_forward is chunked, got {name}")
        self.chunk = chunk

    def forward(  # noqa: D102
        self, x: Float[Tensor, "*B N d"], mask: Bool[Tensor, "*B N"] | None = None
    ) -> Float[Tensor, "*B N d"]:
        if self.plain and can_slice(x):
            # The activation's forward, not the module: hooks on it would run again in the backward pass.
            return sliced_feed_forward(x, self.up, self.down, self.activation.forward, self.chunk)
        if torch.compiler.is_compiling():
            return self.whole(x)
        rows = x.flatten(0, -2)
        most = slice_length(self.inner_width) if x.device.type == "cpu" else max(1, len(rows))
        pieces = rows.split(self.chunk or most)
        return torch.cat([checkpoint(self.whole, piece, use_reentrant=False) for piece in pieces]).view(x.shape)
