"""Compressive Transformer. Rae 2019, arXiv:1911.05507: as Transformer-XL; what leaves the segment memory is compressed.

The c oldest positions become one position of a compressed memory in front of the segment memory: their mean, their
maximum, a convolution of width and stride c, or the 1 in c attended most (section 3.2). The convolution learns to keep
attention as it was (algorithm 2): |a(h, old) - a(h, compressed)|^2, a without positions, as the only loss it gets.
Time O(N M D + M d^2), memory O(M d), with M = N + segment memory + compressed memory.
"""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers._initial import set_
from greenformers.attention._contract import Project, Shape
from greenformers.attention._dense import dense_attention
from greenformers.attention._relative import Relative
from greenformers.attention._relative import reference as reference

Function = Literal["convolution", "mean", "max", "most_used"]


class Compressive(Relative):
    """Relative attention with a compressed memory.

    Args:
        shape: Heads, width and length.
        ratio: Compression rate c.
        compressed: Number of positions of the compressed memory, each for c older positions.
        function: The compression: "convolution", "mean", "max" or "most_used".
        weight: Weight of the loss of the convolution.
        dropout: Probability of dropping an attention weight in training.

    Raises:
        ValueError: The attention is cross-attention, or an option is out of range.
    """

    compresses = True

    def __init__(
        self,
        shape: Shape,
        *,
        ratio: int = 4,
        compressed: int = 128,
        function: Function = "convolution",
        weight: float = 1.0,
        dropout: float = 0.0,
    ) -> None:
        for name, value in (("ratio", ratio), ("compressed", compressed)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if function not in get_args(Function):
            raise ValueError(f"function must be one of {', '.join(get_args(Function))}; got {function!r}")
        if not weight >= 0:
            raise ValueError(f"weight must be at least 0, got {weight}")
        self.ratio, self.compressed, self.function, self.weight = ratio, compressed, function, weight
        self.compress_multiple = ratio
        super().__init__(shape, dropout=dropout)

    def reset_parameters(self) -> None:
        """Draw the parameters of positions; the convolution starts near the mean."""
        super().reset_parameters()
        if self.function == "convolution":
            width = self.shape.heads * self.shape.head_dim
            if not hasattr(self, "kernel"):
                self.kernel = nn.Parameter(torch.empty(width, width, self.ratio))
            if not self.kernel.is_meta:
                noise = torch.randn_like(self.kernel) * 0.1 * (width * self.ratio) ** -0.5
                set_(self.kernel, noise + torch.eye(width, device=noise.device)[..., None] / self.ratio)

    def compress(  # noqa: D102
        self,
        x: Float[Tensor, "B N d"],
        old: Float[Tensor, "B n d"],
        mask: Bool[Tensor, "B n"] | None,
        project: Project,
        *,
        query_mask: Bool[Tensor, "B N"] | None = None,
    ) -> tuple[Float[Tensor, "B m d"], Bool[Tensor, "B m"] | None, Float[Tensor, ""] | None]:
        usage = None
        if self.function == "most_used":
            with torch.no_grad():
                (q,), (k,) = project(x, ["q"]), project(old, ["k"])
                usage = self.usage(q, k, mask, query_mask)
        new, new_mask = self.shorten(old, mask, usage)
        if not (self.function == "convolution" and self.training and torch.is_grad_enabled()):
            return new.detach(), new_mask, None
        with torch.no_grad():
            (q,), (k, v) = project(x, ["q"]), project(old, ["k", "v"])
        # Only the convolution gets a gradient: everything else is held constant.
        new_k, new_v = project(new, ["k", "v"])
        loss = self.reconstruction(q, (k, v, mask), (new_k, new_v, new_mask), query_mask)
        return new.detach(), new_mask, loss

    def shorten(
        self,
        old: Float[Tensor, "B n d"],
        mask: Bool[Tensor, "B n"] | None,
        usage: Float[Tensor, "B n"] | None,
    ) -> tuple[Float[Tensor, "B m d"], Bool[Tensor, "B m"] | None]:
        """Compress n = m c positions to m; the mask says which of these stand for any kept position.

        Args:
            old: Inputs (B, n, d) of the layer.
            mask: True = keep.
            usage: Sum of the weights each position was attended with (B, n), for "most_used".

        Raises:
            ValueError: The number n is no multiple of c, or "most_used" gets no usage.
        """
        if old.shape[1] % self.ratio:
            raise ValueError(f"a multiple of ratio {self.ratio} positions can be compressed, got {old.shape[1]}")
        if self.function == "most_used":
            if usage is None:
                raise ValueError("most_used compresses by usage, got none")
            return _most_used(old, mask, usage, old.shape[1] // self.ratio)
        blocks = old.unflatten(1, (-1, self.ratio))  # (B, m, c, d)
        keep = None if mask is None else mask.unflatten(1, (-1, self.ratio))
        if self.function == "max":
            if keep is not None:
                blocks = blocks.masked_fill(~keep[..., None], torch.finfo(old.dtype).min)
            shortened = blocks.amax(2)
            if keep is not None:
                shortened = shortened.masked_fill(~keep.any(2)[..., None], 0.0)
        else:
            if keep is not None:
                blocks = blocks.masked_fill(~keep[..., None], 0.0)
            if self.function == "mean":
                count = self.ratio if keep is None else keep.sum(2)[..., None].clamp(min=1)
                shortened = blocks.sum(2) / count
            else:
                shortened = torch.einsum("bmcd,edc->bme", blocks, self.kernel.to(old.dtype))
        return shortened, None if keep is None else keep.any(2)

    def usage(
        self,
        q: Float[Tensor, "B H N D"],
        k: Float[Tensor, "B H n D"],
        mask: Bool[Tensor, "B n"] | None,
        query_mask: Bool[Tensor, "B N"] | None,
    ) -> Float[Tensor, "B n"]:
        """Sum of the weights of each key over all kept queries and heads, by content alone."""
        scores = q * q.shape[3] ** -0.5 @ k.mT
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None], torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        return (weights if query_mask is None else weights * query_mask[:, None, :, None]).sum((1, 2))

    def reconstruction(
        self,
        q: Float[Tensor, "B H N D"],
        old: tuple[Float[Tensor, "B H n D"], Float[Tensor, "B H n D"], Bool[Tensor, "B n"] | None],
        new: tuple[Float[Tensor, "B H m D"], Float[Tensor, "B H m D"], Bool[Tensor, "B m"] | None],
        query_mask: Bool[Tensor, "B N"] | None,
    ) -> Float[Tensor, ""]:
        """The weighted loss: mean squared error of attention to compressed keys and values against the old ones."""
        before, after = (_attended(q, *side) for side in (old, new))
        if query_mask is None:
            return self.weight * F.mse_loss(after, before.detach())
        error = (after - before.detach()).square().mean((1, 3))  # (B, N)
        return self.weight * (error * query_mask).sum() / query_mask.sum().clamp(min=1)


def _attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    # 0 without kept keys, before and after alike: what stands at masked positions is not reconstructed.
    return dense_attention(q, k, v, mask)


def _most_used(old: Tensor, mask: Tensor | None, usage: Tensor, count: int) -> tuple[Tensor, Tensor | None]:
    """The `count` positions with the largest usage, in their order, and their mask."""
    if mask is not None:
        usage = usage.masked_fill(~mask, -1.0)
    places = usage.topk(count, dim=1).indices.sort(1).values
    chosen = old.gather(1, places[..., None].expand(-1, -1, old.shape[2]))
    return chosen, None if mask is None else mask.gather(1, places)
