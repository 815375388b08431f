"""Recordings and their texts: utterances on disk, which are read when they are needed, or strings of spoken digits."""

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
"""The layout of the corpus of single digits, of which strings are made; the others are those of `corpus`."""


class Recordings(Protocol):
    """Three splits of sounds with their texts."""

    def size(self, split: str) -> int:
        """Number of recordings in "train", "valid" or "test"."""

    def length(self, index: int) -> float:
        """Duration of a training recording in seconds; the expected one, if the recording is drawn at random."""

    def texts(self, split: str = "train") -> Iterable[str]:
        """The texts of a split."""

    def text(self, index: int) -> str | None:
        """The text of a training recording; None if the recording is drawn at random."""

    def speaker(self, split: str, index: int) -> str | None:
        """Who speaks in a recording; None where that is not known."""

    def sound(self, split: str, index: int, source: torch.Generator) -> tuple[Tensor, str]:
        """Waveform (n,) and text; anything random in them is drawn from `source`."""


class OnDisk:
    """The utterances of a corpus. Files that cannot be read raise at once, except those of the test split.

    Args:
        corpus: The corpus that names the files.
        rate: Samples a second to resample to, whatever the files have.
        longest: Longest utterance in seconds; longer ones are left out of training and validation, as are those that
            are too short.
        only: Split that is looked at, of "train", "valid" and "test"; None for all that training needs.

    Attributes:
        left_out: Number of utterances that are left out.

    Raises:
        AudioError: The header of a file is damaged, or there is no such file.
        ValueError: No utterance of a split is left.
    """

    def __init__(self, corpus: Corpus, rate: int, longest: float, only: str | None = None) -> None:
        self.corpus, self.rate = corpus, rate
        self.left_out = 0
        splits = [split for split in ("train", "valid") if only in (None, split)]
        self._used = {split: self._fitting(split, longest) for split in splits}

    def size(self, split: str) -> int:  # noqa: D102
        whole = len(self.corpus.split(split))
        return len(self._used[split]) if split in self._used else whole

    def length(self, index: int) -> float:  # noqa: D102
        return self._used["train"][index][1]

    def check(self, split: str, count: int) -> None:
        """Read the headers of the first recordings of a split, before the work on them.

        Raises:
            AudioError: One is damaged or too short, or there is no such file.
        """
        for utterance, time in _timed(self.corpus.split(split)[:count]):
            if time < audio.SHORTEST_SECONDS:
                part = f" from {utterance.start:g} s on" if utterance.start else ""
                shortest = f"{1000 * audio.SHORTEST_SECONDS:g} ms"
                raise audio.AudioError(f"{utterance.path}: of a recording{part} there must be at least {shortest}")

    def texts(self, split: str = "train") -> Iterable[str]:  # noqa: D102
        if split == "valid":
            return (utterance.text for utterance, _ in self._used[split])
        return (utterance.text for utterance in self.corpus.split(split))  # of training also those that are left out

    def text(self, index: int) -> str | None:  # noqa: D102
        return self._used["train"][index][0].text

    def speaker(self, split: str, index: int) -> str | None:  # noqa: D102
        return self._utterance(split, index).speaker

    def sound(self, split: str, index: int, source: torch.Generator) -> tuple[Tensor, str]:  # noqa: D102
        utterance = self._utterance(split, index)
        waveform = audio.read(
            utterance.path, rate=self.rate, start=utterance.start, end=utterance.end, channel=utterance.channel
        )
        return waveform, utterance.text

    def _utterance(self, split: str, index: int) -> Utterance:
        return self.corpus.split(split)[index] if split == "test" else self._used[split][index][0]

    def _fitting(self, split: str, longest: float) -> list[tuple[Utterance, float]]:
        """Utterances of a split that are neither too long nor too short, with their durations in seconds."""
        timed = _timed(getattr(self.corpus, split))
        heard = [(utterance, time) for utterance, time in timed if time >= audio.SHORTEST_SECONDS]
        if timed and not heard:
            raise ValueError(
                f"{self.corpus.name}: an utterance must be at least {1000 * audio.SHORTEST_SECONDS:g} ms of its file, "
                f"of the {len(timed)} of {split} none is"
            )
        fitting = [(utterance, time) for utterance, time in heard if time <= longest]
        if timed and not fitting:
            raise ValueError(f"longest must be at least {min(time for _, time in heard):.2f} s, got {longest}")
        self.left_out += len(timed) - len(fitting)
        return fitting


def of_manifest(path: Path, rate: int) -> Recordings:
    """The recordings of one manifest (.tsv, .csv or .jsonl), which is the test split; there is no other.

    Args:
        path: The manifest, whose paths are relative to its folder.
        rate: Samples a second to resample to.

    Raises:
        ValueError: The manifest is damaged.
    """
    audio.check_rate(rate)
    loaded = corpus.load(path)
    return OnDisk(Corpus(loaded.name, [], [], loaded.train), rate, math.inf)


class DigitStrings:
    """Strings of spoken digits, new ones in every epoch."""

    def __init__(self, digits: SpokenDigits) -> None:
        self.digits = digits

    def size(self, split: str) -> int:  # noqa: D102
        return self.digits.size(split)

    def length(self, index: int) -> float:  # noqa: D102
        return self.digits.expected("train", index)

    def texts(self, split: str = "train") -> Iterable[str]:  # noqa: D102
        return (" ".join(DIGITS),)

    def text(self, index: int) -> str | None:  # noqa: D102
        return None

    def speaker(self, split: str, index: int) -> str | None:  # noqa: D102
        return None  # strings are made of clips of a few speakers

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
    only: str | None = None,
) -> Recordings:
    """The recordings of a corpus; a warning tells how many are left out for their length.

    Args:
        folder: Folder of the corpus, or its manifest.
        layout: One of `corpus.LAYOUTS`, or `SPOKEN_DIGITS`; None to recognise it from what the folder holds.
        rate: Samples a second to resample to.
        longest: Longest utterance of training and validation, in seconds.
        valid: Manifest to validate on, where the corpus is a manifest.
        test: Manifest to test on, where the corpus is a manifest.
        held_out: Speaker of the spoken digits who is in the test split only.
        only: Split that is looked at; None for all that training needs.

    Raises:
        ValueError: An argument is out of range, arguments exclude each other, or the corpus is damaged.
        OSError: A file or folder is missing.
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
    utterances = OnDisk(corpus.load(folder, layout, valid=valid, test=test), rate, longest, only)
    if utterances.left_out:
        splits = "training and validation" if only is None else only
        warnings.warn(
            f"{utterances.left_out} utterances of {splits} are left out: shorter than "
            f"{1000 * audio.SHORTEST_SECONDS:g} ms, or longer than {longest:g} s",
            stacklevel=2,
        )
    return utterances


def _timed(utterances: list[Utterance]) -> list[tuple[Utterance, float]]:
    """Utterances and their durations in seconds; each file's header is read once."""
    whole: dict[Path, float] = {}
    timed = []
    for utterance in utterances:
        if utterance.path not in whole:
            whole[utterance.path] = audio.seconds(utterance.path)
        end = whole[utterance.path] if utterance.end is None else min(utterance.end, whole[utterance.path])
        timed.append((utterance, end - utterance.start))
    return timed
