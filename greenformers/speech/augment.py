"""Augmentation of training recordings: speed, noise, and recordings in which nothing is said.

    speed   x(a t), a of 0.9, 1, 1.1                            Ko 2015 (speed perturbation), section 2.3
    noise   x + g n, g^2 = P_x / (P_n 10^(SNR / 10))            P: mean square; SNR in decibels

n has a power of 1 / f^b, b of 0, 1, 2: white, pink, brown. Every draw is from the generator of the example, so that a
run that is resumed hears the same. SpecAugment is `features.spec_augment`.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from greenformers._extras import needed

TENTHS = (9, 10, 11)
"""Speeds, in tenths of that of the recording."""
SNR = (5.0, 30.0)
"""Range of the ratio of sound to added noise, in decibels."""
LEVELS = (-70.0, -10.0)
"""Range of the level of recordings of noise alone, in decibels of full scale."""


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Changes of the training recordings; by default there are none.

    Attributes:
        speed: Whether recordings are made slower or faster, one in three each.
        noise: Whether noise is added to one recording in two.
        speechless: Share of the recordings that silence or noise takes the place of, with an empty text.

    Raises:
        ValueError: The share is not in 0..1, or is 1.
    """

    speed: bool = False
    noise: bool = False
    speechless: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.speechless < 1:
            raise ValueError(f"speechless must be in [0, 1), got {self.speechless}")

    def __call__(
        self, waveform: Float[Tensor, "n"], text: str, source: torch.Generator, *, most: int
    ) -> tuple[Float[Tensor, "m"], str]:
        """A recording and its text, changed.

        Args:
            waveform: The recording.
            text: Its text.
            source: Generator of the draws; the result is a function of its state and of the recording.
            most: Samples that the network can read; a recording that would become longer keeps its speed.
        """
        if self.speechless and _uniform(0, 1, source) < self.speechless:
            return nothing_said(len(waveform), source), ""
        if self.speed:
            tenths = TENTHS[_below(len(TENTHS), source)]
            if 10 * len(waveform) <= tenths * most:
                waveform = sped(waveform, tenths)
        if self.noise and _below(2, source):
            waveform = with_noise(waveform, coloured_noise(len(waveform), source), _uniform(*SNR, source))
        return waveform, text


def sped(waveform: Float[Tensor, "n"], tenths: int) -> Float[Tensor, "m"]:
    """A recording at so many tenths of its speed, with its pitch: m = ceil(10 n / tenths).

    Raises:
        MissingExtraError: The package scipy is not installed.
    """
    if tenths == 10:
        return waveform
    signal: Any = needed("speed perturbation", "speech", "scipy", "scipy.signal")
    resampled = signal.resample_poly(waveform.double().numpy(), 10, tenths)
    return torch.from_numpy(resampled).to(waveform.dtype)


def coloured_noise(samples: int, source: torch.Generator) -> Float[Tensor, "n"]:
    """Noise of mean square 1 whose power falls as 1, 1 / f or 1 / f^2, white, pink or brown."""
    power = _below(3, source)
    spectrum = torch.fft.rfft(torch.randn(samples, generator=source, dtype=torch.float64))
    shaped = spectrum * torch.arange(len(spectrum)).clamp(min=1).double() ** (-power / 2)
    noise = torch.fft.irfft(shaped, samples)
    return (noise / noise.square().mean().clamp(min=1e-12).sqrt()).float()


def with_noise(waveform: Float[Tensor, "n"], noise: Float[Tensor, "n"], snr: float) -> Float[Tensor, "n"]:
    """A recording with noise whose mean square is `snr` decibels below that of the recording; silence stays so."""
    ratio = waveform.double().square().mean() / noise.double().square().mean().clamp(min=1e-12)
    return waveform + (ratio / 10 ** (snr / 10)).sqrt().to(waveform.dtype) * noise


def nothing_said(samples: int, source: torch.Generator) -> Float[Tensor, "n"]:
    """Silence, in one of four, or noise of any colour and level, within 1: a recording in which nothing is said."""
    if not _below(4, source):
        return torch.zeros(samples)
    noise = coloured_noise(samples, source)
    if _below(2, source):
        # Louder and softer, a few times a second, as the world outside is.
        slow = torch.rand(2 + samples // 4000, generator=source)
        noise = noise * F.interpolate(slow[None, None], samples, mode="linear", align_corners=True)[0, 0]
    return (10 ** (_uniform(*LEVELS, source) / 20) * noise).clamp(-1, 1)


def _below(limit: int, source: torch.Generator) -> int:
    return int(torch.randint(limit, (), generator=source))


def _uniform(low: float, high: float, source: torch.Generator) -> float:
    return low + (high - low) * float(torch.rand((), generator=source))
