"""Evolved Transformer. So 2019, arXiv:1901.11117: the cells that an evolution found, of about two layers each.

A norm stands first in each residual, and one behind the last cell. pad adds channels of 0, sep is a depthwise
convolution and then a linear layer. The encoder cell, y the norm of x before each step:

    1. x + V y * sigmoid(G y)
    2. x + pad(sep9(norm(relu(W y) + pad(relu(conv3(y))))))   W to 4 d, conv3 to d / 2, sep9 to d / 2 channels
    3. x + attention(y), H heads
    4. x + FFN(y), relu, f = 4 d

The decoder cell, whose convolutions are causal:

    1. x + attention(y), 2 H heads and at most 16, + attention to the encoder output(y), H heads
    2. x + sep7'(norm(relu(sep11(y)) + pad(sep7(y))))         sep11 to 2 d, sep7 to d / 2, sep7' to d channels
    3. x + attention(y), H heads
    4. x + attention to the encoder output(y), H heads
    5. x + FFN(y), swish, f = 4 d

About 21.5 d^2 and 28.5 d^2 weights, where standard layers have 12 d^2 and 16 d^2. Time O(N^2 d + N d^2).
"""

from collections.abc import Sequence

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers.blocks._contract import Block, Past, Size
from greenformers.blocks._convolution import Dense, Depthwise, Separable, zeroed

MOST_HEADS = 16
"""Limit of the 2 H heads of the decoder's first attention."""


class Evolved(Block):
    """The encoder cell; causal, the decoder cell, without an encoder the one that leaves out what reads its output.

    Args:
        size: Sizes of the network around it. Ranks of gate hold for V and G, of up for W, of down for the linear
            layers of separable convolutions.
        encoder_kernels: Numbers of positions in the kernels of the encoder cell, conv3 and sep9 in the paper; odd.
        decoder_kernels: Those of the decoder cell: sep11, sep7 and sep7'.

    Raises:
        ValueError: An option is out of range, d is odd, or the heads of an attention do not divide it.
    """

    has_feed_forward = True
    attends = True
    keeps_cache = True
    crosses = True
    needs_final_norm = True

    def __init__(
        self,
        size: Size,
        *,
        encoder_kernels: Sequence[int] = (3, 9),
        decoder_kernels: Sequence[int] = (11, 7, 7),
    ) -> None:
        super().__init__(size)
        if size.width % 2:
            raise ValueError(f"evolved halves the width, which must be even, got {size.width}")
        for name, kernels, count in (("encoder", encoder_kernels, 2), ("decoder", decoder_kernels, 3)):
            if len(kernels) != count:
                raise ValueError(f"{name}_kernels must be {count} numbers, got {kernels}")
        self.first: nn.Module = _DecoderFirst(size) if size.causal else _Gate(size)
        self.convolutions: nn.Module = (
            _DecoderConvolutions(size, *decoder_kernels)
            if size.causal
            else _EncoderConvolutions(size, *encoder_kernels)
        )
        self.attention = size.make_attention()
        self.cross_attention = None if size.cross_attention is None else size.cross_attention()
        self.feed_forward = size.make_feed_forward(activation="silu" if size.causal else "relu")
        self.first_norm, self.convolutions_norm, self.attention_norm = (size.make_norm() for _ in range(3))
        self.cross_attention_norm = None if size.cross_attention is None else size.make_norm()
        self.feed_forward_norm = size.make_norm()
        self.dropout = nn.Dropout(size.dropout)

    def forward(  # noqa: D102
        self,
        x: Float[Tensor, "B N d"],
        mask: Bool[Tensor, "B P"] | None = None,
        memory: Float[Tensor, "B S d"] | None = None,
        *,
        past: Past | None = None,
        encoder_output: Float[Tensor, "b M d"] | None = None,
        encoder_mask: Bool[Tensor, "b M"] | None = None,
    ) -> tuple[Float[Tensor, "B N d"], None]:
        if memory is not None:
            raise ValueError(f"evolved takes no memory, got one {tuple(memory.shape)}")
        x = zeroed(x, mask)  # a weight of 0 times NaN would be NaN
        encoded = (encoder_output, encoder_mask, past)
        x = x + self.dropout(self.first(self.first_norm(x), mask, *encoded))
        x = x + self.dropout(self.convolutions(self.convolutions_norm(x), mask, past))
        x = x + self.dropout(self.attention(self.attention_norm(x), mask, past))
        if self.cross_attention is not None and self.cross_attention_norm is not None:
            x = x + self.dropout(self.cross_attention(self.cross_attention_norm(x), *encoded, mask))
        own = None if mask is None else mask[:, -x.shape[1] :]
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x), own)), None


class _Gate(nn.Module):
    """Step 1 of the encoder cell."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.value, self.gate = size.linear_layer("gate"), size.linear_layer("gate")

    def forward(self, y: Tensor, *_: object) -> Tensor:
        gated: Tensor = self.value(y) * self.gate(y).sigmoid()
        return gated


class _DecoderFirst(nn.Module):
    """Step 1 of the decoder cell."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention = size.make_attention(heads=min(2 * size.heads, MOST_HEADS))
        self.cross_attention = None if size.cross_attention is None else size.cross_attention()

    def forward(
        self,
        y: Tensor,
        mask: Tensor | None,
        encoder_output: Tensor | None,
        encoder_mask: Tensor | None,
        past: Past | None,
    ) -> Tensor:
        attended: Tensor = self.attention(y, mask, past)
        if self.cross_attention is None:
            return attended
        return attended + self.cross_attention(y, encoder_output, encoder_mask, past, mask)


class _EncoderConvolutions(nn.Module):
    """Step 2 of the encoder cell."""

    def __init__(self, size: Size, dense: int, separable: int) -> None:
        super().__init__()
        d = size.width
        self.left, self.right = size.linear_layer("up", d, 4 * d), Dense(d, d // 2, dense, causal=False)
        self.norm = size.make_norm(4 * d)
        self.last = _separable(size, 4 * d, d // 2, separable)

    def forward(self, y: Tensor, mask: Tensor | None, past: Past | None) -> Tensor:
        left = F.relu(self.left(y))
        joined = self.norm(left + _padded(F.relu(self.right(zeroed(y, mask), past)), left))
        return _padded(self.last(zeroed(joined, mask), past), y)


class _DecoderConvolutions(nn.Module):
    """Step 2 of the decoder cell."""

    def __init__(self, size: Size, left: int, right: int, last: int) -> None:
        super().__init__()
        d = size.width
        self.left, self.right = _separable(size, d, 2 * d, left), _separable(size, d, d // 2, right)
        self.norm = size.make_norm(2 * d)
        self.last = _separable(size, 2 * d, d, last)

    def forward(self, y: Tensor, mask: Tensor | None, past: Past | None) -> Tensor:
        y = zeroed(y, mask)
        left = F.relu(self.left(y, past))
        joined: Tensor = self.norm(left + _padded(self.right(y, past), left))
        out: Tensor = self.last(zeroed(joined, mask), past)
        return out


def _separable(size: Size, inputs: int, outputs: int, kernel: int) -> Separable:
    return Separable(Depthwise(inputs, kernel, causal=size.causal), size.linear_layer("down", inputs, outputs))


def _padded(x: Tensor, like: Tensor) -> Tensor:
    """`x` with channels of 0 behind its own, as many as `like` has."""
    return F.pad(x, (0, like.shape[-1] - x.shape[-1]))
