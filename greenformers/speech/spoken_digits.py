"""Strings of spoken digits, made of the clips of the Free Spoken Digit Dataset. Jackson et al. 2018.

3,000 clips of one digit each, 22 minutes: 6 speakers, 10 digits, 50 takes at 8 kHz. A string is said by one speaker,
with short pauses; far easier than real speech, and small enough to train on a CPU.
"""

from __future__ import annotations

import zipfile
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from greenformers._extras import needed
from greenformers.speech.alignment import loudness
from greenformers.train.stream import generator

FILE = "fsdd.npz"
ARRAYS = ("audio", "offsets", "digit", "speaker", "index", "speakers", "sample_rate")
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SPLITS = ("train", "valid", "test")
RATE = 16_000  # Hz, of strings
RECORDED = 8_000  # Hz, of clips
PAUSE = 2_400  # samples between two digits at most: 150 ms
TEST_TAKES = range(5)  # the official split of the corpus
VALID_TAKES = range(5, 8)
STRING_OF = 5  # clips of the training split for each string of an epoch
FRAME = 160  # samples of a string whose loudness is measured: 10 ms
SOUNDING = 40.0
"""Decibels below the loudest frame of a clip down to which a frame sounds."""

Clips = dict[str, list[Tensor]]  # by speaker: for each digit, the indices of its clips (k,)


class SpokenDigits:
    """Strings of digits in three splits that have no clip in common; made by `load`.

    Attributes:
        speakers: Names of the speakers of all splits.
        least: Number of digits of the shortest string.
        most: Number of digits of the longest string.
    """

    def __init__(
        self,
        audio: Tensor,
        offsets: list[int],
        clips: dict[str, Clips],
        sizes: dict[str, int],
        least: int,
        most: int,
    ) -> None:
        self._audio, self._offsets, self._clips, self._sizes = audio, offsets, clips, sizes
        self.speakers = sorted({speaker for part in clips.values() for speaker in part})
        self.least, self.most = least, most

    @property
    def longest(self) -> float:
        """Upper bound of the duration of a string, in seconds."""
        clip = max(end - start for start, end in pairwise(self._offsets))
        return (self.most * clip + (self.most - 1) * PAUSE) / RATE

    def expected(self, split: str, index: int) -> float:
        """Expected duration of a string in seconds: its digits at the mean length of a clip, and pauses.

        Raises:
            ValueError: There is no such split, or no such string.
        """
        count, clip = self.digits_in(split, index), self._offsets[-1] / (len(self._offsets) - 1)
        return (count * clip + (count - 1) * PAUSE / 2) / RATE

    def size(self, split: str) -> int:
        """Number of strings of a split; for "train" those of an epoch, one for every 5 clips.

        Raises:
            ValueError: There is no such split.
        """
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
        return self._sizes[split]

    def digits_in(self, split: str, index: int) -> int:
        """Number of digits in a string, known before the string is made, so that batches can be of similar length.

        Raises:
            ValueError: There is no such split, or no such string.
        """
        if not 0 <= index < self.size(split):
            raise ValueError(f"index must be in 0..{self.size(split) - 1} of split {split}, got {index}")
        return self.least + index % (self.most - self.least + 1)

    def string(self, split: str, index: int, source: torch.Generator) -> tuple[Tensor, str, dict[str, Any]]:
        """Make the sound of a string of digits.

        Args:
            split: "train", whose digits are drawn from `source`; "valid" or "test", whose digits are the same every
                time.
            index: Index of the string, 0..size(split) - 1.
            source: Generator of the training strings.

        Returns:
            Samples (n,) at 16 kHz in -1..1; the text, such as "seven zero three"; and its source: "clips", their
            indices in the corpus, "starts", the sample of the string that each begins at, and "speaker".

        Raises:
            ValueError: As in `digits_in`.
        """
        count = self.digits_in(split, index)
        if split != "train":
            source = generator(0, 3, SPLITS.index(split), index)
        by_speaker = self._clips[split]
        speaker = list(by_speaker)[_below(len(by_speaker), source)]
        parts: list[Tensor] = []
        clips: list[int] = []
        starts: list[int] = []
        words: list[str] = []
        for place in range(count):
            digit = _below(len(DIGITS), source)
            takes = by_speaker[speaker][digit]
            clip = int(takes[_below(len(takes), source)])
            if place:
                parts.append(torch.zeros(_below(PAUSE + 1, source)))
            starts.append(sum(map(len, parts)))
            parts.append(self._audio[self._offsets[clip] : self._offsets[clip + 1]])
            clips.append(clip)
            words.append(DIGITS[digit])
        return torch.cat(parts), " ".join(words), {"clips": clips, "starts": starts, "speaker": speaker}

    def times(self, about: dict[str, Any]) -> list[tuple[float, float]]:
        """When each word of a string sounds, from its start to its end in seconds, to 10 ms.

        A clip may begin and end with quiet frames, which are no part of the word.

        Args:
            about: Source of the string, as `string` gives it.
        """
        times = []
        for clip, start in zip(about["clips"], about["starts"], strict=True):
            first, end = sounding(self._audio[self._offsets[clip] : self._offsets[clip + 1]])
            times.append(((start + first) / RATE, (start + end) / RATE))
        return times


def sounding(waveform: Tensor) -> tuple[int, int]:
    """The samples, first and end, of a clip (n,) at 16 kHz within which it sounds, to 10 ms; see `SOUNDING`."""
    levels = loudness(waveform, FRAME)
    frames = (levels >= levels.max() - SOUNDING).nonzero().flatten().tolist()
    return FRAME * frames[0], min(FRAME * (frames[-1] + 1), len(waveform))


def load(
    folder: str | Path,
    *,
    held_out: str | None = None,
    valid_strings: int = 300,
    test_strings: int = 300,
    least: int = 3,
    most: int = 7,
) -> SpokenDigits:
    """Read the clips, resample them to 16 kHz, and divide them into splits that have no clip in common.

    Args:
        folder: Folder that holds fsdd.npz.
        held_out: None: takes 0-4 of every speaker and digit are "test", 5-7 "valid", 8-49 "train". A speaker's name:
            all this speaker's clips are "test"; of the others, takes 5-7 are "valid" and the rest "train".
        valid_strings: Number of strings of split "valid".
        test_strings: Number of strings of split "test".
        least: Number of digits of the shortest string; 1 or more.
        most: Number of digits of the longest string; `least` or more.

    Raises:
        ValueError: An argument is out of its range, or the file is damaged.
        OSError: The file is missing or cannot be read.
    """
    if not 1 <= least <= most:
        raise ValueError(f"least and most must be 1 <= least <= most, got {least} and {most}")
    if valid_strings < 1 or test_strings < 1:
        raise ValueError(f"valid_strings and test_strings must be at least 1, got {valid_strings} and {test_strings}")
    path = Path(folder) / FILE
    if not path.is_file():
        raise FileNotFoundError(f"{FILE} is needed, none is in folder {str(folder)!r}")
    arrays = _read(path)
    speakers = [str(name) for name in arrays["speakers"]]
    if held_out is not None and held_out not in speakers:
        raise ValueError(f"held_out must be one of {', '.join(speakers)}, got {held_out!r}")
    clips = _parted(arrays, speakers, held_out)
    sizes = {"train": _number(clips["train"]) // STRING_OF, "valid": valid_strings, "test": test_strings}
    audio, offsets = _resampled(arrays["audio"], arrays["offsets"].tolist())
    return SpokenDigits(audio, offsets, clips, sizes, least, most)


def _read(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of the file, checked."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: np.asarray(archive[name]) for name in ARRAYS}
    except KeyError:
        raise ValueError(f"{path.name}: expected arrays {', '.join(ARRAYS)}, one is missing") from None
    # A file that is no archive is taken for a pickle (ValueError), or for a lone array without fields (TypeError).
    except (ValueError, TypeError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path.name}: expected a whole npz file, found a damaged one") from error
    fault = _fault(arrays)
    if fault is not None:
        raise ValueError(f"{path.name}: {fault}")
    return arrays


def _fault(arrays: dict[str, np.ndarray[Any, Any]]) -> str | None:
    """The fault of the arrays, in words; None if there is none."""
    audio, offsets = arrays["audio"], arrays["offsets"]
    if arrays["sample_rate"].shape != () or arrays["sample_rate"] != RECORDED:
        return f"sample_rate must be {RECORDED}"
    if audio.dtype != np.int16 or audio.ndim != 1:
        return f"audio must be int16 (samples,), found {audio.dtype} {audio.shape}"
    if offsets.dtype.kind != "i" or offsets.ndim != 1 or len(offsets) < 2:
        return f"offsets must be whole numbers (clips + 1,), found {offsets.dtype} {offsets.shape}"
    if offsets[0] != 0 or offsets[-1] != len(audio) or (np.diff(offsets) < 1).any():
        return f"offsets must rise from 0 to {len(audio)}, the number of samples"
    clips = len(offsets) - 1
    limits = {"digit": len(DIGITS), "speaker": arrays["speakers"].size, "index": 256}
    for name, limit in limits.items():
        values = arrays[name]
        if values.shape != (clips,) or values.dtype.kind not in "iu":
            return f"{name} must be whole numbers ({clips},), found {values.dtype} {values.shape}"
        if values.min() < 0 or values.max() >= limit:
            return f"{name} must be in 0..{limit - 1}"
    return None


def _parted(arrays: dict[str, np.ndarray[Any, Any]], speakers: list[str], held_out: str | None) -> dict[str, Clips]:
    """The clips of each split."""
    takes = arrays["index"]
    valid = np.isin(takes, VALID_TAKES)
    if held_out is None:
        test = np.isin(takes, TEST_TAKES)
    else:
        test = arrays["speaker"] == speakers.index(held_out)
        valid &= ~test
    chosen = {"train": ~(valid | test), "valid": valid, "test": test}
    return {split: _grouped(arrays, speakers, mask, split) for split, mask in chosen.items()}


def _grouped(
    arrays: dict[str, np.ndarray[Any, Any]], speakers: list[str], mask: np.ndarray[Any, Any], split: str
) -> Clips:
    """The clips of one split by speaker and digit; a speaker without any is not in it."""
    clips: Clips = {}
    for number, speaker in enumerate(speakers):
        own = mask & (arrays["speaker"] == number)
        if not own.any():
            continue
        clips[speaker] = [
            torch.from_numpy(np.flatnonzero(own & (arrays["digit"] == digit))) for digit in range(len(DIGITS))
        ]
        missing = [word for word, takes in zip(DIGITS, clips[speaker], strict=True) if not len(takes)]
        if missing:
            raise ValueError(f"{FILE}: split {split} has no clip of {missing[0]} by {speaker}")
    if not clips:
        raise ValueError(f"{FILE}: split {split} has no clip")
    return clips


def _number(clips: Clips) -> int:
    return sum(len(takes) for by_digit in clips.values() for takes in by_digit)


def _resampled(audio: np.ndarray[Any, Any], offsets: list[int]) -> tuple[Tensor, list[int]]:
    """Every clip at 16 kHz, each by itself, as a filter over all of them would leak from clip to clip."""
    signal: Any = needed("sound of another rate", "speech", "scipy", "scipy.signal")
    step = RATE // RECORDED
    new = np.empty(step * len(audio), dtype=np.float32)
    for start, end in pairwise(offsets):
        new[step * start : step * end] = signal.resample_poly(audio[start:end].astype(np.float32) / 2**15, step, 1)
    # Between two samples at full scale the resampled wave may exceed it.
    return torch.from_numpy(new.clip(-1, 1)), [step * offset for offset in offsets]


def _below(limit: int, source: torch.Generator) -> int:
    """A number in 0..limit - 1."""
    return int(torch.randint(limit, (), generator=source))
