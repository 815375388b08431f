"""Convolutions over positions: depthwise, dense, and with weights of a softmax over the kernel, fixed or dynamic.

With K positions in the kernel, position i reads i - (K - 1) / 2 to i + (K - 1) / 2; causal, i - K + 1 to i, of which
a cache holds the last K - 1. Positions outside the sequence are 0, and the caller makes masked ones 0, right before.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers.blocks._contract import Past

TILE = 32
"""Positions of a tile of a dynamic convolution, which share one matrix product for each head."""


def zeroed(x: Float[Tensor, "B N C"], mask: Bool[Tensor, "B P"] | None) -> Float[Tensor, "B N C"]:
    """`x` with 0 at masked positions; those of `x` are the last N of the mask."""
    return x if mask is None else x.masked_fill(~mask[:, -x.shape[1] :, None], 0.0)


class Convolution(nn.Module):
    """Base of every convolution: which inputs the kernel of each position reads, from the sequence or a cache.

    Args:
        channels: Number C of channels of its input.
        kernel: Number K of positions in the kernel; odd, if not causal.
        causal: Whether position i reads only positions up to i.

    Attributes:
        place: Index in the cache of its earlier inputs; a stack numbers its layers.

    Raises:
        ValueError: The kernel is out of range.
    """

    def __init__(self, channels: int, kernel: int, *, causal: bool) -> None:
        super().__init__()
        if kernel < 1:
            raise ValueError(f"a kernel must have at least 1 position, got {kernel}")
        if kernel % 2 == 0 and not causal:
            raise ValueError(f"a kernel must be odd where it reads both sides of a position, got {kernel}")
        self.channels, self.kernel, self.causal, self.place = channels, kernel, causal, 0

    def around(self, x: Float[Tensor, "B N C"], past: Past | None) -> Float[Tensor, "B N+K-1 C"]:
        """The inputs with K - 1 more, so that position i reads those from i to i + K - 1 of the result."""
        if past is not None:
            return past.recent(self.place, x, self.kernel - 1)
        left = self.kernel - 1 if self.causal else self.kernel // 2
        return F.pad(x, (0, 0, left, self.kernel - 1 - left))

    def reset_parameters(self) -> None:
        """Draw the convolution's own parameters anew."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"{self.channels}, kernel={self.kernel}, causal={self.causal}"


class Dense(Convolution):
    """y_i = b + sum_k W_k x_{i + k}, from C channels to `outputs`. Time O(N K C outputs).

    Args:
        channels: Number C of channels of its input.
        outputs: Number of channels of its output.
        kernel: Number K of positions in the kernel.
        causal: Whether position i reads only positions up to i.
    """

    def __init__(self, channels: int, outputs: int, kernel: int, *, causal: bool) -> None:
        super().__init__(channels, kernel, causal=causal)
        self.weight = nn.Parameter(torch.empty(outputs, channels, kernel))
        self.bias = nn.Parameter(torch.empty(outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw W with the variance 1 / (K C), which outputs of equal variance need; b is 0."""
        nn.init.normal_(self.weight, std=(self.channels * self.kernel) ** -0.5)
        nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "B N C"], past: Past | None = None) -> Float[Tensor, "B N outputs"]:
        """Convolve; see the top of the file for what is read at the ends."""
        return F.conv1d(self.around(x, past).mT, self.weight, self.bias).mT


class Depthwise(Convolution):
    """y_ic = sum_k w_kc x_{i + k, c}: each channel has a kernel of its own. Time O(N K C)."""

    def __init__(self, channels: int, kernel: int, *, causal: bool) -> None:
        super().__init__(channels, kernel, causal=causal)
        self.weight = nn.Parameter(torch.empty(channels, 1, kernel))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw w with the variance 1 / K."""
        nn.init.normal_(self.weight, std=self.kernel**-0.5)

    def forward(self, x: Float[Tensor, "B N C"], past: Past | None = None) -> Float[Tensor, "B N C"]:
        """Convolve; see the top of the file for what is read at the ends."""
        return F.conv1d(self.around(x, past).mT, self.weight, groups=self.channels).mT


class Separable(nn.Module):
    """A depthwise convolution, then a linear layer at each position, with nothing between. Time O(N C (K + outputs)).

    Args:
        depthwise: The depthwise convolution.
        pointwise: The linear layer.
    """

    def __init__(self, depthwise: Depthwise, pointwise: nn.Module) -> None:
        super().__init__()
        self.depthwise, self.pointwise = depthwise, pointwise

    def forward(self, x: Float[Tensor, "B N C"], past: Past | None = None) -> Float[Tensor, "B N outputs"]:
        """Convolve; see the top of the file for what is read at the ends."""
        y: Tensor = self.pointwise(self.depthwise(x, past))
        return y


class Softmax(Convolution):
    """Base of convolutions whose h heads, of C / h channels each, share weights that a softmax makes sum to 1.

    Args:
        channels: Number C of channels.
        kernel: Number K of positions in the kernel.
        causal: Whether position i reads only positions up to i.
        heads: Number h of heads, a divisor of C.
        dropout: Probability, in training, of dropping a weight after the softmax.

    Raises:
        ValueError: A number is out of range.
    """

    def __init__(self, channels: int, kernel: int, *, causal: bool, heads: int, dropout: float) -> None:
        super().__init__(channels, kernel, causal=causal)
        if heads < 1 or channels % heads:
            raise ValueError(f"conv_heads must divide the {channels} channels of the convolution, got {heads}")
        if not 0 <= dropout < 1:
            raise ValueError(f"weight_dropout must be in [0, 1), got {dropout}")
        self.heads, self.dropout = heads, nn.Dropout(dropout)

    def weights(self, scores: Float[Tensor, "*B h K"]) -> Float[Tensor, "*B h K"]:
        """The weights of these scores."""
        dropped: Tensor = self.dropout(scores.softmax(-1))
        return dropped


class Lightweight(Softmax):
    """y_ic = sum_k softmax_k(w_h) x_{i + k, c}, h the head of c. Wu 2019, arXiv:1901.10430, eq. 3. Time O(N K C)."""

    def __init__(self, channels: int, kernel: int, **options: Any) -> None:
        super().__init__(channels, kernel, **options)
        self.weight = nn.Parameter(torch.empty(self.heads, kernel))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw w within sqrt(6 / (h + K)) of 0."""
        most = (6 / (self.heads + self.kernel)) ** 0.5
        nn.init.uniform_(self.weight, -most, most)

    def forward(self, x: Float[Tensor, "B N C"], past: Past | None = None) -> Float[Tensor, "B N C"]:
        """Convolve; see the top of the file for what is read at the ends."""
        weight = self.weights(self.weight).repeat_interleave(self.channels // self.heads, 0)
        return F.conv1d(self.around(x, past).mT, weight[:, None], groups=self.channels).mT


class Dynamic(Softmax):
    """y_ic = sum_k softmax_k(W_h x_i) x_{i + k, c}, h the head of c. Wu 2019, arXiv:1901.10430, 4.

    The fast form multiplies, for a head and a tile of T positions, the matrix of their weights (T, T + K - 1), each row
    one place behind the one above, with the T + K - 1 inputs that the tile reads. Time O(N (T + K) C), memory
    O(N (T + K) h): nothing is stored K times, as the windows of all positions would be.
    """

    def __init__(self, channels: int, kernel: int, **options: Any) -> None:
        super().__init__(channels, kernel, **options)
        self.of_position = nn.Linear(channels, self.heads * kernel, bias=False)

    def reset_parameters(self) -> None:
        """Do nothing: W is a linear layer."""

    def forward(self, x: Float[Tensor, "B N C"], past: Past | None = None) -> Float[Tensor, "B N C"]:
        """Convolve; see the top of the file for what is read at the ends."""
        weights = self.weights(self.of_position(x).unflatten(-1, (self.heads, -1)))  # (B, N, h, K)
        return in_tiles(weights, self.around(x, past).unflatten(-1, (self.heads, -1))).flatten(2)


def in_tiles(
    weights: Float[Tensor, "B N h K"], x: Float[Tensor, "B N+K-1 h c"], tile: int = TILE
) -> Float[Tensor, "B N h c"]:
    """sum_k weights_{i, k} x_{i + k}, see `Dynamic`."""
    N, K, T = weights.shape[1], weights.shape[3], min(tile, weights.shape[1])
    short, width = -N % T, T + K - 1
    rows = F.pad(weights, (0, 0, 0, 0, 0, short)).unflatten(1, (-1, T)).transpose(2, 3)  # (B, tiles, h, T, K)
    # Rows of K weights and T zeros, read as rows that are one shorter: each begins one place further on.
    band = F.pad(rows, (0, T)).flatten(-2)[..., :-T].unflatten(-1, (T, width))
    read = F.pad(x, (0, 0, 0, 0, 0, short)).unfold(1, width, T)  # (B, tiles, h, c, T + K - 1)
    return (band @ read.mT).transpose(2, 3).flatten(1, 2)[:, :N]
