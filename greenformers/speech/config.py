"""The configuration of a speech recogniser, a transformer after a front end. Greenformers thesis, Cahyawijaya 2021."""

import math
from typing import Any, Self

from greenformers.model import GreenformerConfig
from greenformers.speech.features import Spectrogram


class SpeechConfig(GreenformerConfig):
    """Sizes and slots of a `GreenformerConfig`, and sizes of its front end; the defaults are those of the thesis.

    Args:
        rate: Sampling rate, Hz.
        n_fft: Length of the Fourier transform, in samples.
        window: Length of a frame, in samples.
        hop: Distance from frame to frame, in samples.
        channels: Channels c of the front end, whose last convolutions have 2 c.
        input_rank: LED rank of the linear layer from the front end to width d; None where it is dense.
        ctc_weight: Share of the CTC loss of the encoder output in the loss, and by default in the score of a beam
            search; 0 for none, and no linear layer for it. Kim 2017, arXiv:1609.06773; Watanabe 2017 (hybrid
            CTC/attention), eq. 27.
        learnt_seconds: Duration of the longest training recording; None where it is not known.

    Raises:
        ValueError: A value is out of range.
    """

    model_type = "greenformer_speech"

    rate: int = 16_000
    n_fft: int = 320
    window: int = 320
    hop: int = 160
    channels: int = 64
    input_rank: int | None = None
    ctc_weight: float = 0.0
    learnt_seconds: float | None = None
    max_position_embeddings: int = 1500
    hidden_size: int = 512
    num_hidden_layers: int = 2
    decoder_layers: int | None = 4
    num_attention_heads: int = 8
    intermediate_size: int = 2048
    hidden_act: str | None = "relu"
    position: str | None = "sinusoidal"
    layer_norm_eps: float = 1e-5
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if not 0 <= self.ctc_weight < 1:
            raise ValueError(f"ctc_weight must be in [0, 1), got {self.ctc_weight}")
        if self.learnt_seconds is not None and not 0 < self.learnt_seconds < math.inf:
            raise ValueError(f"learnt_seconds must be above 0 and finite, got {self.learnt_seconds}")
        self.spectrogram()

    def without_ranks(self) -> Self:
        """A copy of the configuration whose network has dense linear layers alone, that of the front end too."""
        dense = super().without_ranks()
        dense.input_rank = None
        return dense

    def spectrogram(self) -> Spectrogram:
        """The spectrogram that turns sound into the input of the network.

        Raises:
            ValueError: A size of the spectrogram is out of range.
        """
        return Spectrogram(rate=self.rate, n_fft=self.n_fft, window=self.window, hop=self.hop)
