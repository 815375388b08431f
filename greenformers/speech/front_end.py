"""The front end: a small VGG network, from T frames to T // 4 vectors. Cahyawijaya 2021, 4.1, figure 4.1."""

from collections.abc import Iterable
from itertools import repeat
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from greenformers.speech.features import Spectrogram

POOLED = 4
"""Number of frames that become one position."""


def heard(waveform: Float[Tensor, "n"], spectrogram: Spectrogram) -> Float[Tensor, "m"]:
    """A waveform (n,), padded with silence if it has too few frames for a position."""
    return F.pad(waveform, (0, max(0, _least(spectrogram) - len(waveform))))


def positions(samples: int, spectrogram: Spectrogram) -> int:
    """Number of positions of a waveform of so many samples, after `heard`."""
    return spectrogram.frames(max(samples, _least(spectrogram))) // POOLED


def _least(spectrogram: Spectrogram) -> int:
    """Number of samples that have the frames of one position."""
    return max(spectrogram.n_fft // 2 + 1, (POOLED - 1) * spectrogram.hop + spectrogram.n_fft % 2)


class VGG(nn.Module):
    """Four convolutions 3 x 3, to c, c, 2 c and 2 c channels, with max-pooling by 2 after the second and the fourth.

    Time O(T F c^2). Positions after the end of an utterance are set to 0 before every convolution, so that padding
    changes nothing.

    Args:
        bins: Number of frequencies F of the spectrogram; at least 4.
        channels: Channels c of the first two convolutions.

    Raises:
        ValueError: A size is out of range.
    """

    def __init__(self, bins: int, channels: int) -> None:
        super().__init__()
        if bins < POOLED:
            raise ValueError(f"bins must be at least {POOLED}, got {bins}")
        if channels < 1:
            raise ValueError(f"channels must be at least 1, got {channels}")
        self.bins, self.width = bins, 2 * channels * (bins // POOLED)
        sizes = ((1, channels), (channels, channels), (channels, 2 * channels), (2 * channels, 2 * channels))
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in sizes)

    def forward(
        self, features: Float[Tensor, "B T F"], mask: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B t w"]:
        """Vectors (B, T // 4, (F // 4) 2 c).

        Args:
            features: Spectrograms (B, T, F).
            mask: Mask (B, T), True = keep; padding is at the end.

        Raises:
            ValueError: There are too few frames, another number of frequencies than the network's, or padding that is
                not at the end.
        """
        if features.shape[2] != self.bins:
            raise ValueError(f"features must have {self.bins} frequencies, got {features.shape[2]}")
        if features.shape[1] < POOLED:
            raise ValueError(f"features must have at least {POOLED} frames, got {features.shape[1]}")
        if mask is not None and not bool((mask[:, :-1] | ~mask[:, 1:]).all()):
            raise ValueError("features must be padded at the end: the mask has a gap")
        if torch.is_grad_enabled() or features.device.type != "cpu" or torch.compiler.is_compiling():
            return self._read(features, mask)
        # Without gradients one utterance after another, so that the wide activations of a batch are not held at once.
        masks = repeat(None) if mask is None else mask.split(1)
        return torch.cat([self._read(*utterance) for utterance in zip(features.split(1), masks, strict=False)])

    def _read(self, features: Tensor, mask: Tensor | None) -> Tensor:
        # Channels last: convolutions of few channels take half the time.
        x = features[..., None].permute(0, 3, 1, 2)  # (B, 1, T, F)
        keep = None if mask is None else mask[:, None, :, None].to(x.dtype)
        if keep is not None:
            x = x * keep
        for layer, convolution in enumerate(cast(Iterable[nn.Conv2d], self.convolutions)):
            weight = convolution.weight.contiguous(memory_format=torch.channels_last)
            x = F.conv2d(x, weight, convolution.bias, padding=1)
            x = (x if keep is None else x.mul_(keep)).relu_()
            if layer % 2:
                x = F.max_pool2d(x, 2)
                # An odd last frame is dropped, as it is without padding.
                if keep is not None:
                    keep = keep[:, :, 1::2]
                    x = x.mul_(keep)
        return x.permute(0, 2, 3, 1).flatten(2)


def shortened(mask: Bool[Tensor, "B T"]) -> Bool[Tensor, "B t"]:
    """The mask of the front end's output: positions all of whose frames are kept."""
    return mask[:, POOLED - 1 :: POOLED]
