"""ISAB, the Set Transformer's layer. Lee 2019, arXiv:1810.00825, eq. 9 and 10: MAB(X, MAB(I, X)).

m inducing points I, learned, attend to the sequence, and the sequence attends to the outputs of that. Permuting the
positions permutes the output. Time O(N m d + N d^2), memory O((N + m) d). No causal form: the inducing points see all
positions.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers.blocks._contract import Block, Size
from greenformers.blocks._mab import MAB


class Isab(Block):
    """Self-attention of a set through inducing points.

    Args:
        size: Sizes of the network around it; `feed_forward` is not used, as MAB has a position-wise layer of its own.
        m: Number of inducing points.

    Attributes:
        I: The inducing points (m, d).

    Raises:
        ValueError: The network is causal, or m is below 1.
    """

    def __init__(self, size: Size, *, m: int = 16) -> None:
        super().__init__(size)
        if size.causal:
            raise ValueError("isab has no causal form: its inducing points see all positions")
        if m < 1:
            raise ValueError(f"m must be at least 1, got {m}")
        self.I = nn.Parameter(torch.empty(m, size.width))
        self.inner, self.outer = MAB(size), MAB(size)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Xavier uniform of I as (1, m, d), the authors' shape: within sqrt(6 / ((m + 1) d)) of 0."""
        if not self.I.is_meta:
            nn.init.xavier_uniform_(self.I[None])

    def forward(  # noqa: D102
        self,
        x: Float[Tensor, "B N d"],
        mask: Bool[Tensor, "B N"] | None = None,
        memory: Float[Tensor, "B S d"] | None = None,
    ) -> tuple[Float[Tensor, "B N d"], None]:
        if memory is not None:
            raise ValueError(f"isab takes no memory, got one {tuple(memory.shape)}")
        if mask is not None:  # a weight of 0 times NaN would be NaN
            x = x.masked_fill(~mask[..., None], 0.0)
        return self.outer(x, self.inner(self.I[None], x, mask)), None
