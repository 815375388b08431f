"""Formats of transcripts: lines of text, a table, JSON, and subtitles. Whatever is here is data, and for stdout.

| format | what is written |
|---|---|
| text | a line for each file: its transcript, empty where nothing could be read |
| tsv | a header, and a row for each piece: file, start, end, text, log_probability |
| json | a list with an object for each file; its pieces have the same names, and words with times and confidence |
| srt | numbered cues of one file, as SubRip has them |
| vtt | cues of one file, WebVTT (w3.org/TR/webvtt1) |

A cue of subtitles is a piece; where the times of words are known, it is as many of its words as fit 84 characters and 7
seconds, and it ends where a pause of a second follows.

Times are in seconds, in subtitles hours, minutes, seconds and milliseconds; log-probabilities are in nats.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from enum import StrEnum
from typing import Any

from greenformers.speech.transcript import Segment, Transcript, Word

CHARACTERS, SECONDS, PAUSE = 84, 7.0, 1.0
"""Of a cue: most characters (two lines of 42), longest duration, and the pause in seconds before a new one."""

COLUMNS = ("file", "start", "end", "text", "log_probability")

Lines = Callable[[Iterable[Transcript]], Iterator[str]]


class Format(StrEnum):
    """A format of transcripts."""

    TEXT = "text"
    TSV = "tsv"
    JSON = "json"
    SRT = "srt"
    VTT = "vtt"

    def check(self, files: int) -> None:
        """Raise ValueError where the format cannot hold so many files."""
        if self in (Format.SRT, Format.VTT) and files != 1:
            raise ValueError(f"format {self} must have one file, as its times are of one; got {files}")

    def lines(self, transcripts: Iterable[Transcript]) -> Iterator[str]:
        """The lines of transcripts, each as soon as its transcript is there; none ends with a line feed."""
        return _LINES[self](transcripts)


def _text(transcripts: Iterable[Transcript]) -> Iterator[str]:
    for transcript in transcripts:
        yield transcript.text


def _tsv(transcripts: Iterable[Transcript]) -> Iterator[str]:
    yield "\t".join(COLUMNS)
    for transcript in transcripts:
        for segment in transcript.segments:
            row = {"file": str(transcript.path)} | _rounded(segment)
            # A table without quoting, as manifests are; a path may have any white space inside.
            yield "\t".join("" if row[name] is None else " ".join(str(row[name]).split()) for name in COLUMNS)


def _json(transcripts: Iterable[Transcript]) -> Iterator[str]:
    """A list that is written one object a line, so that the first ones can be read before the last is there."""
    before = "["
    for transcript in transcripts:
        entry = {
            "file": str(transcript.path),
            "text": transcript.text,
            "seconds": round(transcript.seconds, 3),
            "fault": transcript.fault,
            "segments": [_rounded(segment) for segment in transcript.segments],
        }
        yield before + json.dumps(entry, ensure_ascii=False, allow_nan=False)
        before = ","
    yield "[]" if before == "[" else "]"


def _srt(transcripts: Iterable[Transcript]) -> Iterator[str]:
    number = 0
    for transcript in transcripts:
        for start, end, text in _cues(transcript):
            number += 1
            yield f"{number}\n{_clock(start, ',')} --> {_clock(end, ',')}\n{text}\n"


def _vtt(transcripts: Iterable[Transcript]) -> Iterator[str]:
    yield "WEBVTT\n"
    for transcript in transcripts:
        for start, end, text in _cues(transcript):
            for mark, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
                text = text.replace(mark, name)
            yield f"{_clock(start, '.')} --> {_clock(end, '.')}\n{text}\n"


def _cues(transcript: Transcript) -> Iterator[tuple[float, float, str]]:
    """Start, end and text of each cue; a piece in which nothing is said has none."""
    for segment in transcript.segments:
        if segment.words:
            yield from _cues_of_words(segment)
        elif segment.text:
            yield segment.start, segment.end, segment.text


def _cues_of_words(segment: Segment) -> Iterator[tuple[float, float, str]]:
    # Words are joined as the text has them: with spaces, or in a script without any without.
    space = " " if " " in segment.text else ""
    cue: list[Word] = []
    for word in segment.words:
        text = space.join(each.text for each in (*cue, word))
        if cue and (len(text) > CHARACTERS or word.end - cue[0].start > SECONDS or word.start - cue[-1].end >= PAUSE):
            yield cue[0].start, cue[-1].end, space.join(each.text for each in cue)
            cue = []
        cue.append(word)
    yield cue[0].start, cue[-1].end, space.join(each.text for each in cue)


def _rounded(segment: Segment) -> dict[str, Any]:
    """The fields of a segment, to milliseconds and to a thousandth of a nat."""

    def rounded(fields: dict[str, Any]) -> dict[str, Any]:
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in fields.items()}

    return rounded(asdict(segment)) | {"words": [rounded(asdict(word)) for word in segment.words]}


def _clock(seconds: float, point: str) -> str:
    """A time as 01:02:03.456, with a point or a comma."""
    whole, thousandths = divmod(round(1000 * round(seconds, 3)), 1000)  # as the other formats round
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours:02}:{minute:02}:{second:02}{point}{thousandths:03}"


_LINES: dict[Format, Lines] = {
    Format.TEXT: _text, Format.TSV: _tsv, Format.JSON: _json, Format.SRT: _srt, Format.VTT: _vtt,
}  # fmt: skip
