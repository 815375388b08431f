"""TIM, Transformers with independent mechanisms. Lamb 2021, arXiv:2103.00336: n_s narrow layers that compete.

The d channels are n_s vectors x_s of m = d / n_s, each of a mechanism s with weights and norms of its own:

    c_s = softmax_s(w_s . x_s)                     the competition, at each position
    x_s = LN_s(x_s + c_s attention_s(x_s))         over the positions, H / n_s heads
    x_s = LN_s(x_s + communication_s(x_1 ... x_n)) attention of s to the n_s mechanisms at the same position
    x_s = LN_s(x_s + FFN_s(x_s))                   of inner width f / n_s

With H_c heads of 32, FLOPs a position: (8 d^2 + 4 d f) / n_s + 4 N d + 256 d H_c, where a standard layer has
8 d^2 + 4 d f + 4 N d. Time O(N^2 d + N d^2 / n_s).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers.blocks._contract import Block, Past, Size
from greenformers.blocks._convolution import zeroed

COMMUNICATION_WIDTH = 32
"""Width of a head of the communication."""


class Independent(Block):
    """Mechanisms that compete for attention and then tell each other; the outermost layers are standard ones.

    Args:
        size: Sizes of the network around it. The ranks are those of every mechanism; the linear layers of the
            communication, which are narrow, are dense.
        mechanisms: Number n_s of mechanisms, a divisor of H and so of d; f / n_s is rounded down.
        communication_heads: Number H_c of heads of the communication.
        first: Number of first layers that are standard: a single mechanism, nothing to compete and communicate with.
            None: 2, as in the paper, in a network of at least 4 layers, else 0.
        last: Number of last layers that are; None: 1 or 0, as for `first`.

    Attributes:
        w: The vectors w_s (n_s, m); None in standard layers.

    Raises:
        ValueError: An option is out of range.
    """

    has_feed_forward = True
    attends = True
    keeps_cache = True

    def __init__(
        self,
        size: Size,
        *,
        mechanisms: int = 2,
        communication_heads: int = 2,
        first: int | None = None,
        last: int | None = None,
    ) -> None:
        super().__init__(size)
        if mechanisms < 1 or size.heads % mechanisms:
            raise ValueError(f"mechanisms must divide the {size.heads} heads, got {mechanisms}")
        if mechanisms > size.hidden:
            raise ValueError(f"mechanisms must be at most the inner width {size.hidden}, got {mechanisms}")
        if communication_heads < 1:
            raise ValueError(f"communication_heads must be at least 1, got {communication_heads}")
        for name, value in (("first", first), ("last", last)):
            if value is not None and value < 0:
                raise ValueError(f"{name} must be at least 0, got {value}")
        deep = size.layers >= 4
        first, last = 2 * deep if first is None else first, int(deep) if last is None else last
        standard = size.layer < first or size.layer >= size.layers - last
        self.count = 1 if standard else mechanisms
        self.parts = nn.ModuleList(_Mechanism(size, self.count, communication_heads) for _ in range(self.count))
        self.w = nn.Parameter(torch.empty(self.count, size.width // self.count)) if self.count > 1 else None
        self.dropout = nn.Dropout(size.dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw w with the variance 1 / m, so that w_s . x_s of a normalised x_s has the variance 1."""
        if self.w is not None:
            nn.init.normal_(self.w, std=self.w.shape[1] ** -0.5)

    def competition(self, x: Float[Tensor, "B N d"]) -> Float[Tensor, "B N n_s"]:
        """The share c_s of each mechanism at each position; 1 in standard layers."""
        if self.w is None:
            return torch.ones_like(x[..., :1])
        return (x.unflatten(-1, self.w.shape) * self.w).sum(-1).softmax(-1)

    def forward(  # noqa: D102
        self,
        x: Float[Tensor, "B N d"],
        mask: Bool[Tensor, "B P"] | None = None,
        memory: Float[Tensor, "B S d"] | None = None,
        *,
        past: Past | None = None,
    ) -> tuple[Float[Tensor, "B N d"], None]:
        if memory is not None:
            raise ValueError(f"independent takes no memory, got one {tuple(memory.shape)}")
        x = zeroed(x, mask)  # a weight of 0 times NaN would be NaN
        own = None if mask is None else mask[:, -x.shape[1] :]
        parts: list[_Mechanism] = list(self.parts)  # type: ignore[arg-type]
        shares, xs = self.competition(x).split(1, -1), x.chunk(self.count, -1)
        xs = tuple(
            part.attention_norm(y + self.dropout(c * part.attention(y, mask, past)))
            for part, y, c in zip(parts, xs, shares, strict=True)
        )
        if self.count > 1:
            read = _communicate(parts, xs)
            xs = tuple(
                part.communication_norm(y + self.dropout(part.communication["output"](z)))
                for part, y, z in zip(parts, xs, read, strict=True)
            )
        xs = tuple(
            part.feed_forward_norm(y + self.dropout(part.feed_forward(y, own)))
            for part, y in zip(parts, xs, strict=True)
        )
        return torch.cat(xs, -1), None


class _Mechanism(nn.Module):
    """The weights and norms of one of `count` mechanisms; those of the communication, where there are others."""

    def __init__(self, size: Size, count: int, communication_heads: int) -> None:
        super().__init__()
        m, inner = size.width // count, communication_heads * COMMUNICATION_WIDTH
        self.attention = size.make_attention(m, size.heads // count)
        self.attention_norm = size.make_norm(m)
        if count > 1:
            self.communication = nn.ModuleDict({name: nn.Linear(m, inner, bias=size.bias) for name in ("q", "k", "v")})
            self.communication["output"] = nn.Linear(inner, m, bias=size.bias)
            self.communication_norm = size.make_norm(m)
        self.feed_forward = size.make_feed_forward(width=m, hidden=size.hidden // count)
        self.feed_forward_norm = size.make_norm(m)


def _communicate(parts: list[_Mechanism], xs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """What each mechanism reads from all at the same position, n_s times (B, N, 32 H_c)."""
    q, k, v = (
        torch.stack([part.communication[name](y) for part, y in zip(parts, xs, strict=True)], 2).unflatten(
            -1, (-1, COMMUNICATION_WIDTH)
        )
        for name in ("q", "k", "v")
    )  # (B, N, n_s, H_c, 32)
    # A few weights a head are too few for a matrix product: sums of products.
    q = q * COMMUNICATION_WIDTH**-0.5  # before the products, which float16 might not hold
    scores = (q[:, :, :, None] * k[:, :, None]).sum(-1)  # (B, N, n_s, n_s, H_c)
    read = (scores.softmax(3)[..., None] * v[:, :, None]).sum(3)
    return read.flatten(3).unbind(2)
