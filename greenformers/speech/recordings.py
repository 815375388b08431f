"""What is spoken and written, example by example: utterances on disk, read when asked for, or digit strings."""

import math
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from greenformers.data import _audio as audio
from greenformers.data import _corpus as corpus
from greenformers.data._corpus import Corpus, Utterance
from greenformers.speech import spoken_digits
from greenformers.speech.spoken_digits import DIGITS, SpokenDigits

SPOKEN_DIGITS = "spoken_digits"
"""The layout of digits to be put together; the others are those of `corpus`."""


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


def recordings(
    folder: Path,
    layout: str | None,
    *,
    rate: int,
    longest: float,
    valid: str | None = None,
    test: str | None = None,
    held_out: str | None = None,
) -> Recordings:
    """The recordings of a corpus; a warning tells how many are left out for their length.

    Args:
        folder: of the corpus, or its manifest.
        layout: one of `corpus.LAYOUTS`, or `SPOKEN_DIGITS`; None for what the folder looks like.
        rate: samples a second.
        longest: seconds, of training and validation.
        valid: manifest to choose by, where the corpus is one.
        test: manifest to score on, where the corpus is one.
        held_out: spoken digits: a speaker of whom nothing is learnt.

    Raises:
        ValueError: an argument out of range, arguments that exclude each other, or a damaged corpus.
        OSError: a file or folder is missing.
    """
    if not 0 < longest < math.inf:
        raise ValueError(f"longest must be above 0 and finite, got {longest}")
    if layout == SPOKEN_DIGITS:
        if rate != spoken_digits.RATE:
            raise ValueError(f"rate must be {spoken_digits.RATE} for {SPOKEN_DIGITS}, got {rate}")
        for name, value in (("valid", valid), ("test", test)):
            if value is not None:
                raise ValueError(f"{name} goes with a manifest, the layout is {SPOKEN_DIGITS}; got {value!r}")
        digits = spoken_digits.load(folder, held_out=held_out)
        if longest < digits.longest:
            raise ValueError(f"longest must be at least {digits.longest:.2f} s for these digits, got {longest}")
        return DigitStrings(digits)
    audio.check_rate(rate)
    if held_out is not None:
        raise ValueError(f"held_out is for {SPOKEN_DIGITS}, the layout is {layout}; got {held_out!r}")
    if layout is not None and layout not in corpus.LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join((*corpus.LAYOUTS, SPOKEN_DIGITS))}; got {layout!r}")
    utterances = OnDisk(corpus.load(folder, layout, valid=valid, test=test), rate, longest)
    if utterances.left_out:
        about = f"{utterances.left_out} utterances to learn from or choose by are too short, or longer than {longest} s"
        warnings.warn(about, stacklevel=2)
    return utterances


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
