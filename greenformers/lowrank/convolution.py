"""Low-rank convolution: a rank for each group's weight, seen as a matrix. Zhang 2015, arXiv:1505.06798, section 3.1.

A group's weight is m x n with m = out / groups and n = in / groups times the kernel's points. Here it is a convolution
with that kernel to r channels a group, then a 1 x 1 convolution to the outputs: r (m + n) parameters a group, and as
many multiply-adds an output position, instead of m n: fewer for r < m n / (m + n).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

ConvNd = nn.Conv1d | nn.Conv2d | nn.Conv3d
Sizes = int | tuple[int, ...]

DENSE: dict[int, type[ConvNd]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
CONVOLVE: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class LowRankConv(nn.Module):
    """A convolution of rank at most r in each group, in place of nn.Conv1d, nn.Conv2d and nn.Conv3d.

    Args:
        in_channels: Channels of the input, a multiple of groups.
        out_channels: Channels of the output, a multiple of groups.
        kernel_size: One size for each dimension of space: 1, 2 or 3 of them.
        rank: Rank r of each group, in 1..min(m, n).
        stride: Step of the kernel, as in nn.Conv2d; so are the following options.
        padding: Number of positions added on both sides, or "same" or "valid".
        dilation: Spacing of the kernel's points.
        groups: Number of independent convolutions that the channels are split into.
        bias: Add a bias after the second factor.
        padding_mode: "zeros", "reflect", "replicate" or "circular".
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Attributes:
        encoder: First factor (groups * r, in_channels / groups, *kernel_size).
        decoder: Second factor (out_channels, r), the (m, r) of the groups stacked.

    Raises:
        ValueError: The rank, the groups, the number of kernel sizes or the padding is out of range.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: tuple[int, ...],
        rank: int,
        *,
        stride: Sizes = 1,
        padding: str | Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if len(kernel_size) not in DENSE:
            raise ValueError(f"kernel_size must have 1..3 sizes, got {kernel_size}")
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(f"groups must divide {in_channels} and {out_channels} channels, got {groups}")
        m, n = out_channels // groups, in_channels // groups * torch.Size(kernel_size).numel()
        if not 1 <= rank <= min(m, n):
            raise ValueError(f"rank must be in 1..{min(m, n)} for {groups} x ({n} x {m}) weights, got {rank}")
        self.in_channels, self.out_channels, self.kernel_size, self.rank = in_channels, out_channels, kernel_size, rank
        self.groups, self.padding_mode = groups, padding_mode
        self.encoder = nn.Parameter(
            torch.empty(groups * rank, in_channels // groups, *kernel_size, device=device, dtype=dtype)
        )
        self.decoder = nn.Parameter(torch.empty(out_channels, rank, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype)) if bias else None
        # nn.Conv2d checks the other options, and repeats a single size for each dimension.
        dense = self._dense(stride, padding, dilation)
        self.stride, self.padding, self.dilation = dense.stride, dense.padding, dense.dilation
        self.reset_parameters()

    @classmethod
    def like(cls, conv: ConvNd, rank: int) -> "LowRankConv":
        """A unit of the geometry, dtype and device of a dense convolution, its parameters not initialised.

        Raises:
            TypeError: The module is no nn.Conv1d, nn.Conv2d or nn.Conv3d, or overrides its forward.
            ValueError: The rank is out of range.
        """
        if getattr(type(conv), "forward", None) not in [dense.forward for dense in DENSE.values()]:
            raise TypeError(f"conv must be an nn.Conv1d, nn.Conv2d or nn.Conv3d, got {type(conv).__name__}")
        unit = nn.utils.skip_init(
            cls,
            conv.in_channels,
            conv.out_channels,
            conv.kernel_size,
            rank,
            stride=conv.stride,
            padding=conv.padding,
            dilation=conv.dilation,
            groups=conv.groups,
            bias=conv.bias is not None,
            padding_mode=conv.padding_mode,
            device=conv.weight.device,
            dtype=conv.weight.dtype,
        )
        return unit.train(conv.training)

    @property
    def weight(self) -> Float[Tensor, "out in_per_group *kernel"]:
        """The dense weight the factors stand for, as nn.Conv2d holds it."""
        # reshape and not view: in channels_last, the encoder is not contiguous.
        encoder = self.encoder.reshape(self.groups, self.rank, -1)  # (groups, r, n)
        decoder = self.decoder.reshape(self.groups, -1, self.rank)  # (groups, m, r)
        return (decoder @ encoder).view(self.out_channels, -1, *self.kernel_size)

    def to_dense(self) -> ConvNd:
        """The dense convolution of this weight, trainable where a factor is."""
        dense = self._dense(self.stride, self.padding, self.dilation).to_empty(device=self.encoder.device)
        with torch.no_grad():
            dense.weight.copy_(self.weight)
            if dense.bias is not None and self.bias is not None:
                dense.bias.copy_(self.bias)
        return dense.requires_grad_(any(p.requires_grad for p in self.parameters())).train(self.training)

    def _dense(self, stride: Sizes, padding: str | Sizes, dilation: Sizes) -> ConvNd:
        """A dense convolution of this geometry on the meta device."""
        dense: Callable[..., ConvNd] = DENSE[len(self.kernel_size)]
        return dense(
            self.in_channels,
            self.out_channels,
            self.kernel_size,
            stride,
            padding,
            dilation,
            self.groups,
            self.bias is not None,
            self.padding_mode,
            device="meta",
            dtype=self.encoder.dtype,
        )

    def reset_parameters(self, std: float | None = None) -> None:
        """Draw the factors so that outputs vary as those of the dense convolution, as LED does.

        Args:
            std: Standard deviation of the dense weight; by default that of nn.Conv2d, 1 / sqrt(3 n).
        """
        n = self.encoder[0].numel()
        std = (3 * n) ** -0.5 if std is None else std
        nn.init.normal_(self.encoder, std=n**-0.5)
        nn.init.normal_(self.decoder, std=std * (n / self.rank) ** 0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Convolve (B, in, *space) or (in, *space) with both factors."""
        convolve, padding = CONVOLVE[len(self.kernel_size)], self.padding
        if self.padding_mode != "zeros":
            x, padding = F.pad(x, self._sides(), mode=self.padding_mode), "valid"
        code = convolve(x, self.encoder, None, self.stride, padding, self.dilation, self.groups)
        decoder = self.decoder.reshape(self.out_channels, self.rank, *[1] * len(self.kernel_size))
        return convolve(code, decoder, self.bias, groups=self.groups)

    def _sides(self) -> list[int]:
        """The padding as F.pad takes it: left and right, the last dimension first."""
        if isinstance(self.padding, tuple):
            return [size for size in reversed(self.padding) for _ in range(2)]
        sides = []
        for kernel, dilation in zip(reversed(self.kernel_size), reversed(self.dilation), strict=True):
            both = dilation * (kernel - 1) if self.padding == "same" else 0
            sides += [both // 2, both - both // 2]
        return sides

    def extra_repr(self) -> str:  # noqa: D102
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, rank={self.rank}, "
            f"stride={self.stride}, padding={self.padding!r}, dilation={self.dilation}, groups={self.groups}, "
            f"bias={self.bias is not None}, padding_mode={self.padding_mode!r}"
        )
