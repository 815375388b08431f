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
        """Seconds of a training recording, or those to expect of one that is drawn."""

    def texts(self) -> Iterable[str]:
        """All there is to write in training."""

    def sound(self, split: str, index: int, source: torch.Generator) -> tuple[Tensor, str]:
        """Waveform (n,) and text; what is random about it is drawn from `source`."""


class OnDisk:
    """The utterances of a corpus; files that cannot be read are found at the start, except those of the test split.

    Args:
        corpus: names them.
        rate: samples a second, whatever the files have.
        longest: seconds; longer utterances are left out of training and validation, as are those that are too short.

    Attributes:
        left_out: how many are.

    Raises:
        AudioError: the header of a file is damaged, or there is no such file.
        ValueError: no utterance of a split is left.
    """

    def __init__(self, corpus: Corpus, rate: int, longest: float) -> None:
        self.corpus, self.rate = corpus, rate
        self.left_out = 0
        self._kept = {"train": self._fitting(corpus.train, longest), "valid": self._fitting(corpus.valid, longest)}

    def size(self, split: str) -> int:  # noqa: D102
        whole = len(self.corpus.split(split))
        return len(self._kept[split]) if split in self._kept else whole

    def length(self, index: int) -> float:  # noqa: D102
        return self._kept["train"][index][1]

    def texts(self) -> Iterable[str]:  # noqa: D102
        return (one.text for one in self.corpus.split("train"))

    def sound(self, split: str, index: int, source: torch.Generator) -> tuple[Tensor, str]:  # noqa: D102
        one = self.corpus.split(split)[index] if split == "test" else self._kept[split][index][0]
        waveform = audio.read(one.path, rate=self.rate, start=one.start, end=one.end, channel=one.channel)
        return waveform, one.text

    def _fitting(self, utterances: list[Utterance], longest: float) -> list[tuple[Utterance, float]]:
        """Utterances that are neither too long nor too short, with their seconds."""
        timed = _timed(utterances)
        kept = [(one, time) for one, time in timed if audio.SHORTEST_SECONDS <= time <= longest]
        if timed and not kept:
            raise ValueError(f"longest must be at least {min(time for _, time in timed):.2f} s, got {longest}")
        self.left_out += len(timed) - len(kept)
        return kept


class DigitStrings:
    """Strings of spoken digits, new ones in every epoch."""

    def __init__(self, digits: SpokenDigits) -> None:
        self.digits = digits

    def size(self, split: str) -> int:  # noqa: D102
        return self.digits.size(split)

    def length(self, index: int) -> float:  # noqa: D102
        return self.digits.expected("train", index)

    def texts(self) -> Iterable[str]:  # noqa: D102
        return (" ".join(DIGITS),)

    def sound(self, split: str, index: int, source: torch.Generator) -> tuple[Tensor, str]:  # noqa: D102
        waveform, text, _ = self.digits.string(split, index, source)
        return waveform, text


def _timed(utterances: list[Utterance]) -> list[tuple[Utterance, float]]:
    """Utterances and their seconds; each file's header is read once."""
    whole: dict[Path, float] = {}
    timed = []
    for one in utterances:
        if one.path not in whole:
            whole[one.path] = audio.seconds(one.path)
        end = whole[one.path] if one.end is None else min(one.end, whole[one.path])
        timed.append((one, end - one.start))
    return timed
