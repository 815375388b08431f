"""The configuration of a speech recogniser: a network of the house behind a front end. Thesis 4.1 and 4.2."""

import math
from typing import Any

from greenformers.model import GreenformerConfig
from greenformers.speech.features import Spectrogram


class SpeechConfig(GreenformerConfig):
    """Sizes and slots of a `GreenformerConfig`, and those of what is in front of it; the defaults are the thesis'.

    Args:
        rate: samples a second.
        n_fft: length of the Fourier transform.
        window: samples of a frame.
        hop: samples from frame to frame.
        channels: c of the front end, whose last convolutions have 2 c.
        input_rank: LED rank of the map from the front end to d; None where it is dense.
        ctc_weight: share of the CTC loss of the encoder's output in the loss; 0 for none, and no map for it.
            Watanabe 2017 (hybrid CTC/attention), eq. 27.
        learnt_seconds: length of the longest recording of the training; None where it is not known.

    Raises:
        ValueError: a value out of range.
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

    def spectrogram(self) -> Spectrogram:
        """What turns sound into the network's input.

        Raises:
            ValueError: one of its sizes is out of range.
        """
        return Spectrogram(rate=self.rate, n_fft=self.n_fft, window=self.window, hop=self.hop)
