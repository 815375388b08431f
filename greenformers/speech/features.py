"""Input of the network: log power spectrograms, normalised, masked and batched. Cahyawijaya 2021, section 4.2.

T frames of F bins; features are (T, F), float32, in natural logarithms.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

# Logarithms closer than this count as equal: a `Spectrogram` is exact to this.
SAME = 1e-5


@dataclass(frozen=True, kw_only=True)
class Spectrogram:
    """ln max(floor, |STFT|^2) with a periodic Hann window, centred on every hop-th sample; reflected at both ends.

    Cahyawijaya 2021 has 20 ms windows, an FFT of that length, and a frame every 10 ms. Time O(T n_fft log n_fft).

    Args:
        rate: Sampling rate of the waveforms, Hz.
        n_fft: Length of the FFT, samples; at least 2.
        window: Length of the window, samples; 1..n_fft, with zeros around it up to n_fft.
        hop: Samples from one frame to the next; 1..window, so that none is skipped.
        floor: Least power, above 0; full scale is 1.

    Raises:
        ValueError: An option is out of its range.
    """

    rate: int = 16_000
    n_fft: int = 320
    window: int = 320
    hop: int = 160
    floor: float = 1e-10

    def __post_init__(self) -> None:
        if self.rate < 1:
            raise ValueError(f"rate must be at least 1 Hz, got {self.rate}")
        if self.n_fft < 2:
            raise ValueError(f"n_fft must be at least 2, got {self.n_fft}")
        if not 1 <= self.window <= self.n_fft:
            raise ValueError(f"window must be in 1..{self.n_fft} (n_fft), got {self.window}")
        if not 1 <= self.hop <= self.window:
            raise ValueError(f"hop must be in 1..{self.window} (window), got {self.hop}")
        if not 0 < self.floor < math.inf:
            raise ValueError(f"floor must be above 0 and finite, got {self.floor}")

    @property
    def bins(self) -> int:
        """Number of frequencies F, from 0 Hz to half the sampling rate."""
        return self.n_fft // 2 + 1

    def frames(self, samples: int) -> int:
        """Number of frames T of a waveform of so many samples.

        Raises:
            ValueError: There are too few samples to reflect half a window at each end.
        """
        needed = self.n_fft // 2 + 1
        if samples < needed:
            raise ValueError(f"a waveform must have at least {needed} samples (n_fft // 2 + 1), got {samples}")
        # An odd n_fft has its middle half a sample late, and needs one sample more.
        return 1 + (samples - self.n_fft % 2) // self.hop

    def __call__(self, waveform: Float[Tensor, "n"]) -> Float[Tensor, "T F"]:
        """Features of one waveform.

        Raises:
            ValueError: The waveform has not one dimension, is not floating point, or has too few samples.
        """
        if waveform.ndim != 1 or not waveform.is_floating_point():
            raise ValueError(f"a waveform must be (n,) of floats, got {tuple(waveform.shape)} of {waveform.dtype}")
        self.frames(len(waveform))
        # In float32 a bin 140 dB below the loudest would be rounding error.
        waveform = waveform.double()
        hann = torch.hann_window(self.window, periodic=True, dtype=waveform.dtype, device=waveform.device)
        spectrum = torch.stft(
            waveform, self.n_fft, self.hop, self.window, hann, center=True, pad_mode="reflect", return_complex=True
        )  # (F, T)
        power = spectrum.real.square() + spectrum.imag.square()
        return power.clamp(min=self.floor).log().T.float().contiguous()


def normalised(features: Float[Tensor, "T F"]) -> Float[Tensor, "T F"]:
    """Features of mean 0 and standard deviation 1 over the whole utterance; constant features become 0."""
    centred = features.double() - features.double().mean()
    variance = centred.square().mean()
    scaled = centred / variance.clamp(min=SAME**2).sqrt()
    return torch.where(variance > SAME**2, scaled, torch.zeros_like(scaled)).to(features.dtype)


def spec_augment(
    features: Float[Tensor, "T F"],
    source: torch.Generator,
    *,
    frequency_masks: int = 2,
    frequency_width: int = 27,
    time_masks: int = 2,
    time_width: int = 40,
    time_share: float = 0.2,
) -> Float[Tensor, "T F"]:
    """SpecAugment. Park 2019, arXiv:1904.08779, section 2, without time warping: stretches of bins and frames become 0.

    0 is the mean of normalised features. Each width is drawn uniformly from 0..width, then the place.

    Args:
        features: Features of one utterance, which are not changed.
        source: Generator of the draws; the result is a function of its state and of the features.
        frequency_masks: Number of stretches of bins, m_F of the paper.
        frequency_width: Width of the widest of them, F of the paper; at most all bins are masked.
        time_masks: Number of stretches of frames, m_T of the paper.
        time_width: Width of the widest of them, T of the paper.
        time_share: Largest share of all frames that one of them masks, p of the paper; 0..1.

    Raises:
        ValueError: An option is out of its range.
    """
    numbers = {
        "frequency_masks": frequency_masks,
        "frequency_width": frequency_width,
        "time_masks": time_masks,
        "time_width": time_width,
    }
    for name, number in numbers.items():
        if number < 0:
            raise ValueError(f"{name} must be at least 0, got {number}")
    if not 0 <= time_share <= 1:
        raise ValueError(f"time_share must be in 0..1, got {time_share}")
    features = features.clone()
    frames, bins = features.shape
    for _ in range(frequency_masks):
        features[:, _stretch(bins, min(frequency_width, bins), source)] = 0
    for _ in range(time_masks):
        features[_stretch(frames, min(time_width, int(time_share * frames)), source)] = 0
    return features


def _stretch(length: int, widest: int, source: torch.Generator) -> slice:
    """A random part of 0..length - 1, of 0..widest places."""
    width = _up_to(widest, source)
    start = _up_to(length - width, source)
    return slice(start, start + width)


def _up_to(largest: int, source: torch.Generator) -> int:
    return int(torch.randint(largest + 1, (), generator=source, device=source.device))


def batched(features: Sequence[Float[Tensor, "_ F"]]) -> tuple[Float[Tensor, "B T F"], Bool[Tensor, "B T"]]:
    """Utterances of all lengths as one tensor, 0 after the end of each, and its mask with True = keep.

    Raises:
        ValueError: There are no utterances, or they are not (T, F) with the same F.
    """
    if not features:
        raise ValueError("a batch must have at least 1 utterance, got 0")
    for utterance in features:
        if utterance.ndim != 2 or utterance.shape[1] != features[0].shape[-1]:
            shapes = [tuple(utterance.shape) for utterance in features]
            raise ValueError(f"features of a batch must be (T, F) with the same F, got {shapes}")
    padded = pad_sequence(list(features), batch_first=True)
    lengths = torch.tensor([len(utterance) for utterance in features], device=padded.device)
    return padded, torch.arange(padded.shape[1], device=padded.device) < lengths[:, None]
