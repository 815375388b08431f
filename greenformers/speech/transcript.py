"""Transcripts: what a recogniser has written of a file, with times, and how likely it is."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Word:
    """A word of a transcript, or a character of one in a script without spaces.

    Attributes:
        text: The word.
        start: Its start in the file, in seconds.
        end: Its end, in seconds.
        confidence: Probability that the word is right; None where the recogniser has no calibration.
    """

    text: str
    start: float
    end: float
    confidence: float | None = None


@dataclass(frozen=True)
class Segment:
    """The transcript of one piece of a file.

    Attributes:
        start: Start of the piece in the file, in seconds.
        end: End of the piece, in seconds.
        text: The transcript; empty where nothing is heard.
        log_probability: Log-probability of the text in nats, with that of its end: `Hypothesis.log_probability`; None
            where words were left out of it, as the network has given the rest no probability.
        words: Its words, where they were asked for and the network has a CTC layer to find them with.
    """

    start: float
    end: float
    text: str
    log_probability: float | None
    words: tuple[Word, ...] = ()


@dataclass(frozen=True)
class Transcript:
    """The transcript of a file.

    Attributes:
        path: The file.
        text: The transcript of the whole file.
        seconds: Duration of the sound.
        time: Seconds that the transcription took, with reading the file.
        fault: Why the file could not be read to its end; None if it could.
        segments: The pieces in which the file was read, in order.
    """

    path: Path
    text: str
    seconds: float
    time: float
    fault: str | None = None
    segments: tuple[Segment, ...] = ()
