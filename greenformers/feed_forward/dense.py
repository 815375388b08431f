"""The feed-forward block. Vaswani 2017, arXiv:1706.03762, eq. 2: act(x W1 + b1) W2 + b2, position by position.

Time O(N d f), memory O(N f). Low-rank, act(x E1 D1) E2 D2 (Cahyawijaya 2021, 3.1.1), in time O(N r (d + f)): computed
in slices of positions, see `greenformers.lowrank.feed_forward`.
"""

from jaxtyping import Bool, Float
from torch import Tensor

from greenformers.feed_forward._up_down import UpDown
from greenformers.lowrank.feed_forward import can_slice, sliced_feed_forward


class Dense(UpDown):
    """down(activation(up(x)))."""

    def forward(  # noqa: D102
        self, x: Float[Tensor, "*B N d"], mask: Bool[Tensor, "*B N"] | None = None
    ) -> Float[Tensor, "*B N d"]:
        if self.low_rank and not self.activation_learns and can_slice(x):
            # The activation's forward, not the module: hooks on it would run again in the backward pass.
            return sliced_feed_forward(x, self.up, self.down, self.activation.forward)
        return self.whole(x)
