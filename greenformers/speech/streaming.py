"""Words while the sound still comes: each is written once so much sound has followed it that it will not change.

Sound is heard in windows as long as the recordings of the training, each of which ends with the newest sound. A word is
written when it ends `ahead` seconds before that end; a later one is heard again with more sound behind it. What was
written stays in the window, before the rest, until the window is full; then half of it goes, cut between two words.
Words are told apart by their times, those of CTC's alignment. With windows of w seconds and chunks of c, a second of
sound is heard about 3 w / 4 c times: `transcribe`, in one pass, computes so much less. How the two differ in what they
write is measured by benchmarks/speech_streaming.py.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from greenformers.data import _audio as audio
from greenformers.speech.recognise import Recogniser
from greenformers.speech.transcript import Word

AHEAD = 0.5
"""By default, seconds of sound that follow a word before it is written."""


@dataclass(frozen=True)
class Heard:
    """A word that was written.

    Attributes:
        word: The word.
        at: Seconds of sound that had come when it was written: `at` - `word.end` is its delay, but for computing.
    """

    word: Word
    at: float


class Stream:
    """A recogniser that listens: samples go in, words that will not change any more come out.

    Attributes:
        time: Seconds spent on hearing so far.
    """

    def __init__(self, recogniser: Recogniser, rate: int, *, ahead: float | None = None) -> None:
        """Begin with nothing heard.

        Args:
            recogniser: The recogniser; its gate and its least confidence hold, window by window.
            rate: Samples a second of what will come.
            ahead: Seconds of sound that follow a word before it is written; by default `AHEAD`, or a quarter of a
                window where that is less.

        Raises:
            ValueError: The network was trained without CTC, so that its words have no times; the rate is none of
                sound; or `ahead` is not in 0.1 seconds to a quarter of a window.
        """
        audio.check_rate(rate)
        if not recogniser.model.config.ctc_weight:
            raise ValueError("a stream needs the times of words, so a network that was trained with ctc_weight")
        ahead = min(AHEAD, recogniser.piece / 4) if ahead is None else ahead
        if not 0.1 <= ahead <= recogniser.piece / 4:
            raise ValueError(f"ahead must be in 0.1..{recogniser.piece / 4:g} s for this network, got {ahead:g}")
        self.recogniser, self.rate, self.ahead = recogniser, rate, ahead
        self._window = int(recogniser.piece * rate)
        self._held: NDArray[np.float64] = np.empty(0)
        self._start = 0  # of what is held, in samples
        self._said = 0.0  # end of the last word that was written, in seconds
        self._words: tuple[Word, ...] = ()  # of the last pass
        self.time = 0.0

    @property
    def seconds(self) -> float:
        """The sound that has come."""
        return (self._start + len(self._held)) / self.rate

    def words(self, chunks: Iterable[NDArray[np.float64]]) -> Iterator[Heard]:
        """The words of sound that comes in chunks (n,), each as soon as it is certain, and at the end the rest."""
        for chunk in chunks:
            yield from self.add(chunk)
        yield from self.end()

    def add(self, samples: NDArray[np.float64]) -> list[Heard]:
        """Hear samples (n,), and get the words that are certain now."""
        heard = []
        for first in range(0, len(samples), max(1, self._window // 4)):
            part = samples[first : first + max(1, self._window // 4)]
            if len(self._held) + len(part) > self._window:
                self._forget()
            self._held = np.concatenate([self._held, part])
            heard += self._written(self.seconds - self.ahead)
        return heard

    def end(self) -> list[Heard]:
        """The words that are left when no more sound comes."""
        return self._written(math.inf)

    def _written(self, until: float) -> list[Heard]:
        """Hear the window; its words that end before a time and were not written yet."""
        if len(self._held) < audio.SHORTEST_SECONDS * self.rate:
            return []
        began = perf_counter()
        sound = audio.resampled(self._held, self.rate, self.recogniser.model.config.rate)
        (segment,) = self.recogniser.segments([(self._start / self.rate, sound)], words=True)
        self._words = segment.words
        self.time += perf_counter() - began
        # A word that was written ended where an earlier pass heard its end: the next one begins no sooner.
        words = [replace(word, start=max(word.start, self._said)) for word in self._unwritten() if word.end <= until]
        if words:
            self._said = words[-1].end
        return [Heard(word, self.seconds) for word in words]

    def _unwritten(self) -> Iterator[Word]:
        """The words of the last pass after those that were written; from pass to pass their times move a little."""
        return (word for word in self._words if (word.start + word.end) / 2 > self._said)

    def _forget(self) -> None:
        """Leave half a window, cut between two words; of what was not written, at most three quarters are left."""
        end, half = self.seconds, self._window / 2 / self.rate
        first = next((word.start for word in self._unwritten()), end)
        starts = [*(word.start for word in self._words[1:]), end][: len(self._words)]
        gaps = [(word.end + start) / 2 for word, start in zip(self._words, starts, strict=True)]
        cut = next((gap for gap in gaps if end - half <= gap <= first), min(first, end - half))
        cut = max(cut, end - 1.5 * half)  # a quarter of a window is free for what comes
        samples = round(cut * self.rate) - self._start
        self._start, self._held = self._start + samples, self._held[samples:]
