"""Lite Transformer, long-short range attention. Wu 2020, arXiv:2004.11886: attention far, a convolution near.

[a; b] = x, d / 2 channels each; y = LN(x + [attention(a); convolution(b)]), LN(y + FFN(y)), in the paper with f = d.
convolution(b) = W_2 conv(GLU(W_1 b)), W_1 from d / 2 to d channels, conv a dynamic convolution (Wu 2019) of K
positions and h heads; with `lightweight` its weights are fixed, and W_1 b is not gated.

FLOPs a position: 2 d^2 + 2 N d of the attention, 1.5 d^2 + d h K + d K of the convolution (d (K + 31) as it is
computed), and 4 d f of the FFN; 8 d^2 + 4 N d + 4 d f of a standard layer, of f = 4 d. Time O(N^2 d + N d^2).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers.blocks._contract import Block, Past, Size
from greenformers.blocks._convolution import Dynamic, Lightweight, zeroed


class _Branch(nn.Module):
    """The convolution between its linear layers, over d / 2 channels."""

    def __init__(self, size: Size, kernel: int, *, heads: int, dropout: float, lightweight: bool) -> None:
        super().__init__()
        half = size.width // 2
        self.gated = not lightweight
        self.v = size.linear_layer("v", half, half * (1 + self.gated))
        kind = Lightweight if lightweight else Dynamic
        self.convolution = kind(half, kernel, causal=size.causal, heads=heads, dropout=dropout)
        self.output = size.linear_layer("output", half, half)

    def forward(self, x: Tensor, mask: Tensor | None, past: Past | None) -> Tensor:
        v = F.glu(self.v(x)) if self.gated else self.v(x)
        # Here, and not before: the bias of v would make something of padding, which positions near it would read.
        y: Tensor = self.output(self.convolution(zeroed(v, mask), past))
        return y


class Lite(Block):
    """Attention and a convolution side by side, then a feed-forward block.

    In the decoder of an encoder-decoder the attention to the encoder output, of all d channels, stands between.

    Args:
        size: Sizes of the network around it. The attention has H heads of d / 2 H channels each; ranks of v and output
            hold for the linear layers before and after the convolution too.
        kernels: Numbers K of positions in the kernels of layers 0, 1, ...; later layers have the last one. Odd, if not
            causal.
        conv_heads: Number h of heads of the convolution, a divisor of d / 2; None: H.
        weight_dropout: Probability of dropping a weight of the convolution in training.
        lightweight: Whether the weights of the convolution are the same at all positions.

    Raises:
        ValueError: An option is out of range, or d / 2 is not whole or no multiple of the heads.
    """

    has_feed_forward = True
    attends = True
    keeps_cache = True
    crosses = True

    def __init__(
        self,
        size: Size,
        *,
        kernels: Sequence[int] = (3, 7, 15, 31, 31, 31),
        conv_heads: int | None = None,
        weight_dropout: float = 0.0,
        lightweight: bool = False,
    ) -> None:
        super().__init__(size)
        if size.width % (2 * size.heads):
            raise ValueError(f"lite attends with half of the channels: 2 x {size.heads} heads must divide {size.width}")
        if not kernels:
            raise ValueError(f"kernels must have at least one entry, got {kernels}")
        self.attention = size.make_attention(size.width // 2)
        kernel = kernels[min(size.layer, len(kernels) - 1)]
        heads = size.heads if conv_heads is None else conv_heads
        self.branch = _Branch(size, kernel, heads=heads, dropout=weight_dropout, lightweight=lightweight)
        self.attention_norm = size.make_norm()
        self.cross_attention = None if size.cross_attention is None else size.cross_attention()
        self.cross_attention_norm = None if size.cross_attention is None else size.make_norm()
        self.feed_forward = size.make_feed_forward()
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
            raise ValueError(f"lite takes no memory, got one {tuple(memory.shape)}")
        x = zeroed(x, mask)  # a weight of 0 times NaN would be NaN
        far, near = x.chunk(2, -1)
        mixed = torch.cat([self.attention(far, mask, past), self.branch(near, mask, past)], -1)
        x = self.attention_norm(x + self.dropout(mixed))
        if self.cross_attention is not None and self.cross_attention_norm is not None:
            read = self.cross_attention(x, encoder_output, encoder_mask, past, mask)
            x = self.cross_attention_norm(x + self.dropout(read))
        own = None if mask is None else mask[:, -x.shape[1] :]
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x, own))), None
