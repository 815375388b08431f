"""PMA, the Set Transformer's pooling. Lee 2019, arXiv:1810.00825, eq. 11: MAB(S, rFF(Z)), with k seeds S, learned.

rFF(Z) = ReLU(Z W_up), which the paper has and the authors' code leaves out. The output has k positions and does not
depend on the order of the input's. Time O(N k d + N d^2), memory O((N + k) d). No causal form: the seeds see all
positions.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers.blocks._contract import Block, Size
from greenformers.blocks._mab import MAB


class Pma(Block):
    """Pooling of a set by attention from seeds.

    Args:
        size: Sizes of the network around it; `feed_forward` is not used, as MAB has a position-wise layer of its own.
        k: Number of seeds, and of positions of the output.

    Attributes:
        S: The seeds (k, d).
        keeps_length: False: the output has k positions, whatever the length of the input.

    Raises:
        ValueError: The network is causal, or k is below 1.
    """

    keeps_length: ClassVar[bool] = False

    def __init__(self, size: Size, *, k: int = 1) -> None:
        super().__init__(size)
        if size.causal:
            raise ValueError("pma has no causal form: its seeds see all positions")
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        self.S = nn.Parameter(torch.empty(k, size.width))
        self.up, self.mab = size.linear_layer("up"), MAB(size)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Xavier uniform of S as (1, k, d), the authors' shape: within sqrt(6 / ((k + 1) d)) of 0."""
        if not self.S.is_meta:
            nn.init.xavier_uniform_(self.S[None])

    def forward(  # noqa: D102
        self,
        x: Float[Tensor, "B N d"],
        mask: Bool[Tensor, "B N"] | None = None,
        memory: Float[Tensor, "B M d"] | None = None,
    ) -> tuple[Float[Tensor, "B k d"], None]:
        if memory is not None:
            raise ValueError(f"pma takes no memory, got one {tuple(memory.shape)}")
        if mask is not None:  # a weight of 0 times NaN would be NaN
            x = x.masked_fill(~mask[..., None], 0.0)
        return self.mab(self.S[None], F.relu(self.up(x)), mask), None
