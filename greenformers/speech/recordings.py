"""What is spoken and written, example by example: utterances on disk, read when asked for, or digit strings."""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from greenformers.speech import audio
from greenformers.speech.corpus import Corpus, Utterance
from greenformers.speech.spoken_digits import DIGITS, SpokenDigits


class Recordings(Protocol):
    """Three splits of sounds with their texts."""

    def size(self, split: str) -> int:
        """Number of recordings in "train", "valid" or "test"."""

    def length(self, index: int) -> float:
        """How long a training recording is, next to others."""

    def texts(self) -> Iterable[str]:
        """All there is to write in training."""

    def sound(self, split: str, index: int, source: torch.Generator) -> tuple[Tensor, str]:
        """Waveform (n,) and text; what is random about it is drawn from `source`."""


class OnDisk:
    """The utterances of a corpus; those of the training split that cannot be heard are found at the start.

    Args:
        corpus: names them.
        rate: samples a second, whatever the files have.
        longest: seconds; longer training utterances are left out.

    Attributes:
        left_out: how many are.

    Raises:
        AudioError: the header of a training file is damaged, or there is no such file.
        ValueError: no training utterance is short enough.
    """

    def __init__(self, corpus: Corpus, rate: int, longest: float) -> None:
        self.corpus, self.rate = corpus, rate
        timed = [(one, _seconds(one.path, one.start, one.end)) for one in corpus.train]
        kept = [(one, time) for one, time in timed if time <= longest]
        if timed and not kept:
            raise ValueError(f"longest must be at least {min(time for _, time in timed):.2f} s, got {longest}")
        self._train, self._lengths = [one for one, _ in kept], [time for _, time in kept]
        self.left_out = len(timed) - len(kept)

    def size(self, split: str) -> int:  # noqa: D102
        return len(self._split(split))

    def length(self, index: int) -> float:  # noqa: D102
        return self._lengths[index]

    def texts(self) -> Iterable[str]:  # noqa: D102
        return (one.text for one in self.corpus.split("train"))

    def sound(self, split: str, index: int, source: torch.Generator) -> tuple[Tensor, str]:  # noqa: D102
        one = self._split(split)[index]
        waveform = audio.read(one.path, rate=self.rate, start=one.start, end=one.end, channel=one.channel)
        return waveform, one.text

    def _split(self, split: str) -> list[Utterance]:
        whole = self.corpus.split(split)
        return self._train if split == "train" else whole


class DigitStrings:
    """Strings of spoken digits, new ones in every epoch."""

    def __init__(self, digits: SpokenDigits) -> None:
        self.digits = digits

    def size(self, split: str) -> int:  # noqa: D102
        return self.digits.size(split)

    def length(self, index: int) -> float:  # noqa: D102
        return float(self.digits.digits_in("train", index))

    def texts(self) -> Iterable[str]:  # noqa: D102
        return (" ".join(DIGITS),)

    def sound(self, split: str, index: int, source: torch.Generator) -> tuple[Tensor, str]:  # noqa: D102
        waveform, text, _ = self.digits.string(split, index, source)
        return waveform, text


def _seconds(path: Path, start: float, end: float | None) -> float:
    return (audio.seconds(path) if end is None else end) - start
